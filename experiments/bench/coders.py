"""What the codec benchmark times: a way to code a vector, and ours."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from mqgrad.codecs.codec import Rounding, codec_at
from mqgrad.codecs.rotation import FEW_BITS
from mqgrad.codecs.vector_codec import Feedback, VectorCodec
from mqgrad.compressors import Quantized
from mqgrad.widths import Width

SEED = 7


class Coder(NamedTuple):
    """One way to code a float32 vector [N], ours or a peer's."""

    name: str
    bits: Width
    """Bits per element on the wire, scales not counted."""
    encode: Callable[[torch.Tensor], Any]
    decode_add: Callable[[torch.Tensor, Any], object]
    """Adds what ``encode`` returned to the first argument."""
    encode_mean: Callable[[torch.Tensor], object] | None = None
    """Codes the mean of W payloads [W, P]: what the owner of a shard does."""
    error_calls: int = 1
    """Over so many calls the error is averaged."""
    note: str = ""
    """What a reader must know to compare."""


class Skipped(NamedTuple):
    """A peer that is not measured."""

    name: str
    reason: str


def our_coders(bits: Width, numel: int) -> list[Coder]:
    """Uniform levels with nearest and stochastic rounding, and the hook's own code with error feedback.

    They write to one payload again and again, as the peers do, and as the hook writes to its messages.
    """
    coders = []
    if bits >= 1:
        coders.append(_uniform("nearest", bits, numel))
    if 1 <= bits < 16:  # at 16 bfloat16: nothing is random
        coders.append(_uniform("stochastic", bits, numel))
    return [*coders, _hook(bits, numel)]


def _uniform(rounding: Rounding, bits: Width, numel: int) -> Coder:
    codec = codec_at(bits, rounding=rounding)
    out = _payload(codec, numel)
    return Coder(
        "bfloat16" if bits == 16 else rounding,
        bits,
        lambda x: codec.encode(x, SEED, out=out),
        lambda out, payload: codec.decode_add_(out, payload),
    )


def _hook(bits: Width, numel: int) -> Coder:
    """Sparse below one bit, rotated at 1-3, nearest at 4-8, bfloat16 at 16."""
    compressor = Quantized()
    codec, gains = compressor.codec(bits), compressor.coefficients(compressor.push_gain, bits)
    of_gradient, of_mean = (Feedback(torch.zeros(numel), *gains) for _ in range(2))
    out = _payload(codec, numel)
    return Coder(
        f"hook, {_kind(bits)}",
        bits,
        lambda x: codec.encode(x, SEED, feedback=of_gradient, out=out),
        lambda out, payload: codec.decode_add_(out, payload),
        lambda payloads: codec.encode_mean(payloads, numel, SEED, feedback=of_mean, out=out),
    )


def _payload(codec: VectorCodec, numel: int) -> torch.Tensor:
    return torch.empty(codec.payload_bytes(numel), dtype=torch.uint8)


def _kind(bits: Width) -> str:
    """The hook's code at a width."""
    if bits < 1:
        return "sparse"
    if bits in FEW_BITS:
        return "rotated"
    return "bfloat16" if bits == 16 else "nearest"
