"""Quantize one tensor: the codec as a function."""

import dataclasses

import torch

from .codec import Codec, Rounding
from .widths import Width


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class QuantizedTensor:
    """A tensor as it would travel: packed codes and scales."""

    payload: torch.Tensor
    """uint8 [wire_bytes]."""
    shape: torch.Size
    dtype: torch.dtype
    bits: Width
    codec: Codec

    @property
    def wire_bytes(self) -> int:
        """Bytes on the wire, scales included."""
        return self.payload.numel()

    def dequantize(self) -> torch.Tensor:
        """Return the approximation in the original shape and dtype.

        Raises:
            ValueError: if the payload is too short or too long for the shape.
        """
        flat = self.codec.decode(self.payload, self.shape.numel(), self.bits)
        return flat.to(self.dtype).reshape(self.shape)


def quantize(
    x: torch.Tensor, bits: Width, *, bucket_size: int = 512, rounding: Rounding = "stochastic", seed: int = 0
) -> QuantizedTensor:
    """Quantize a floating tensor of any shape to ``bits`` bits per element (QSGD form, one scale per bucket).

    Args:
        x: float16, bfloat16, float32 or float64 tensor; copied if not contiguous.
        bits: 1-8 packed codes, 16 bfloat16, 32 float32; below 1 the largest magnitudes, whatever bucket size and
            rounding are.
        bucket_size: elements that share one scale.
        rounding: ``stochastic`` is unbiased, ``nearest`` has the smaller error.
        seed: of stochastic rounding; the same seed gives the same bytes on every machine.

    Raises:
        TypeError: for an integer, boolean or complex tensor.
        ValueError: for an unknown width, bucket size or rounding.
    """
    if not x.is_floating_point():
        raise TypeError(f"cannot quantize a tensor of dtype {x.dtype}; convert it to a floating dtype first")
    codec = Codec(bucket_size=bucket_size, rounding=rounding)
    payload = codec.encode(x.detach().reshape(-1), bits, seed)
    return QuantizedTensor(payload=payload, shape=x.shape, dtype=x.dtype, bits=bits, codec=codec)
