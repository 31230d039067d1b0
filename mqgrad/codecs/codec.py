"""The codec of a width, whichever it is."""

from typing import Literal

from ..widths import Width, check_width
from .bfloat16 import Bfloat16Codec
from .float32 import Float32Codec
from .sparse import SparseCodec
from .uniform import UniformCodec
from .vector_codec import VectorCodec

Rounding = Literal["nearest", "stochastic"]


def codec_at(bits: Width, *, bucket_size: int = 512, rounding: Rounding = "nearest") -> VectorCodec:
    """How a flat vector is coded at a width of ``mqgrad.WIDTHS``.

    Below one bit the largest magnitudes of the whole vector are sent, whatever bucket size and rounding are;
    widths 1-8 are quantized and packed by the extension, 16 is bfloat16 and 32 is float32.

    Args:
        bucket_size: elements that share one fp32 scale: 1/16 bit an element.
        rounding: ``nearest`` is contractive and needs error feedback; ``stochastic`` is unbiased and noisier.

    Raises:
        ValueError: for an unknown width, bucket size or rounding.
    """
    if not 8 <= bucket_size <= 65536 or bucket_size % 8:
        raise ValueError(f"bucket_size {bucket_size!r} must be a multiple of 8 in 8..65536")
    if rounding not in ("nearest", "stochastic"):
        raise ValueError(f"rounding {rounding!r} must be 'nearest' or 'stochastic'")
    bits = check_width(bits)
    if bits < 1:
        return SparseCodec(bits=bits)
    if bits == 16:
        return Bfloat16Codec()
    if bits == 32:
        return Float32Codec()
    return UniformCodec(bits=int(bits), bucket_size=bucket_size, stochastic=rounding == "stochastic")
