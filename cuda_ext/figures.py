"""The op that takes what controllers want to know of gradients."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from mqgrad.cuda_ext import checks, library, reference_figures
from mqgrad.cuda_ext.reference_figures import SKETCH_SIZE


def gradient_figures(
    gradients: Sequence[Tensor], keys: Sequence[int], bucket_size: int = 512, *, seed: int = 0
) -> Tensor:
    """Take the figures of gradients, those of each by itself: in one pass; on CUDA by three kernels each.

    Args:
        gradients: at least one, 1-D of a floating type, on one device.
        keys: as many 64-bit integers; gradients of different keys get independent signs.
        bucket_size: elements that share one scale.
        seed: any 64-bit integer, equal on all ranks.

    Returns:
        float64 [number of gradients, 2 + SKETCH_SIZE]: ‖g‖²; the peak energy, Σ n·max|g|² over its buckets of n
        elements; and its count sketch (Charikar et al. 2002, Note [Sketch] in csrc/figures.h). Sketches of different
        keys may be added up. For the same key ⟨sketch(x), sketch(y)⟩ has the expectation ⟨x, y⟩, and a standard error
        of about ‖x‖·‖y‖/√SKETCH_SIZE.

    Raises:
        TypeError: a gradient is of no supported type.
        ValueError: one is not 1-D or on another device; there are none, or not as many as keys; a bucket size that
            is not in 1..2^63 - 1; seed or keys do not fit 64 bits.
    """
    if not gradients or len(gradients) != len(keys):
        raise ValueError(
            f"expected at least one gradient and as many keys, got {len(gradients)} and {len(keys)}"
        )
    checks.require_bucket_size(bucket_size)
    for gradient in gradients:
        checks.require_input(gradient, 1)
        if gradient.device != gradients[0].device:
            raise ValueError(
                f"gradients must be on one device, got {gradient.device} and {gradients[0].device}"
            )
    kernels: Any = library.kernels(gradients[0].device, reference_figures)
    return kernels.gradient_figures(
        [gradient.detach().contiguous() for gradient in gradients],
        [checks.as_int64(key, "a key") for key in keys],
        bucket_size,
        checks.as_int64(seed),
    )


if library.IMPLEMENTATION == "extension":

    @torch.library.register_fake("mqgrad::gradient_figures")
    def _(gradients: Sequence[Tensor], keys: Sequence[int], bucket_size: int, seed: int) -> Tensor:
        return gradients[0].new_empty(len(gradients), 2 + SKETCH_SIZE, dtype=torch.float64)
