"""Quantize one tensor: the codec as a function."""

import dataclasses

import torch

from mqgrad import cuda_ext

from ..widths import Width
from .codec import Rounding, codec_at
from .vector_codec import VectorCodec


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class QuantizedTensor:
    """A tensor as it would travel: packed codes and scales."""

    payload: torch.Tensor
    """uint8 [wire_bytes]."""
    shape: torch.Size
    dtype: torch.dtype
    bits: Width
    codec: VectorCodec
    checksum: torch.Tensor | None = None
    """uint8 [8] of the payload, its width and its number of elements, which ``wire_bytes`` leaves out. None where it
    is not to be compared: on other devices than the CPU, and in compiled code."""

    @property
    def wire_bytes(self) -> int:
        """Bytes on the wire, scales included."""
        return self.payload.numel()

    def dequantize(self) -> torch.Tensor:
        """Return the approximation in the original shape and dtype, in memory of its own.

        Raises:
            ValueError: if the payload is too short or too long for the shape, or not the one that was coded.
        """
        flat = self.codec.decode(self.payload, self.shape.numel())
        if self.checksum is not None:
            self._compare_checksum(self.checksum.to(self.payload.device))
        return flat.to(self.dtype, copy=self.bits == 32).reshape(self.shape)  # there it is the payload itself

    def _compare_checksum(self, checksum: torch.Tensor) -> None:
        numel = self.shape.numel()
        message = torch.cat([self.payload, checksum])
        if cuda_ext.wrong_checksums(message, [len(message)], _salt(numel, self.bits)).any():
            raise ValueError(
                f"the payload of {self.payload.numel()} bytes is not that of {numel} elements at {self.bits} bits as "
                "it was coded: its checksum is wrong"
            )


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
    codec = codec_at(bits, bucket_size=bucket_size, rounding=rounding)
    message = x.new_empty(codec.payload_bytes(x.numel()) + cuda_ext.CHECKSUM_BYTES, dtype=torch.uint8)
    payload, checksum = message[: -cuda_ext.CHECKSUM_BYTES], message[-cuda_ext.CHECKSUM_BYTES :]
    codec.encode(x.detach().reshape(-1), seed, out=payload)
    is_compared = x.device.type == "cpu" and not torch.compiler.is_compiling()
    if is_compared:
        cuda_ext.write_checksums_(message, [len(message)], _salt(x.numel(), bits))
    return QuantizedTensor(
        payload=payload,
        shape=x.shape,
        dtype=x.dtype,
        bits=bits,
        codec=codec,
        checksum=checksum if is_compared else None,
    )


def _salt(numel: int, bits: Width) -> int:
    """Another one for each length and width; widths are at least 1/64."""
    return numel << 12 | int(64 * bits)
