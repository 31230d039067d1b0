"""Gradients to bytes and back at any width, behind one small object."""

import dataclasses
from typing import Literal

from ..widths import Width, check_width
from .bfloat16 import Bfloat16Codec
from .by_width import ByWidth
from .float32 import Float32Codec
from .sparse import SparseCodec
from .uniform import UniformCodec
from .vector_codec import VectorCodec

Rounding = Literal["nearest", "stochastic"]

_SPARSE, _BFLOAT16, _FLOAT32 = SparseCodec(), Bfloat16Codec(), Float32Codec()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Codec(ByWidth):
    """How a flat vector is coded. All ranks of a collective must use equal codecs.

    Below one bit the largest magnitudes of the whole vector are sent, whatever bucket size and rounding are;
    widths 1-8 are quantized and packed by the extension, 16 is bfloat16 and 32 is float32.
    """

    bucket_size: int = 512
    """Elements that share one fp32 scale: 1/16 bit an element."""
    rounding: Rounding = "nearest"
    """``nearest`` is contractive and needs error feedback; ``stochastic`` is unbiased and noisier."""
    uniform: UniformCodec = dataclasses.field(init=False, repr=False, compare=False)
    """At 1-8 bits."""

    def __post_init__(self) -> None:
        if not 8 <= self.bucket_size <= 65536 or self.bucket_size % 8:
            raise ValueError(f"bucket_size {self.bucket_size!r} must be a multiple of 8 in 8..65536")
        if self.rounding not in ("nearest", "stochastic"):
            raise ValueError(f"rounding {self.rounding!r} must be 'nearest' or 'stochastic'")
        uniform = UniformCodec(bucket_size=self.bucket_size, stochastic=self.rounding == "stochastic")
        object.__setattr__(self, "uniform", uniform)

    def at(self, bits: Width) -> VectorCodec:
        """The codec of a width of ``mqgrad.WIDTHS``."""
        if check_width(bits) < 1:
            return _SPARSE
        if bits == 16:
            return _BFLOAT16
        return _FLOAT32 if bits == 32 else self.uniform
