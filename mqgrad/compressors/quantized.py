"""The default: uniform quantization at 1-8 bits, bfloat16 at 16, a plain all-reduce at 32."""

import dataclasses

from ..codec import Codec, Rounding
from .coded import CodedMean


@dataclasses.dataclass(kw_only=True, slots=True)
class Quantized(CodedMean):
    """Uniform levels and one scale per bucket, at any width of ``mqgrad.WIDTHS``.

    Raises:
        ValueError: for an unknown rounding or bucket size.
    """

    rounding: Rounding = "nearest"
    """``nearest`` is contractive and needs error feedback; ``stochastic`` is unbiased and noisier."""

    def __post_init__(self) -> None:
        super(Quantized, self).__post_init__()  # slots make a new class, which super() alone does not find
        self.codec  # noqa: B018 (checks the settings)

    @property
    def codec(self) -> Codec:
        return Codec(bucket_size=self.bucket_size, rounding=self.rounding)


@dataclasses.dataclass(kw_only=True, slots=True)
class QSGD(Quantized):
    """QSGD (Alistarh et al., NeurIPS 2017): stochastic rounding, the largest magnitude as the scale, no feedback.

    At b bits there are s = 2^(b−1) − 1 levels on each side of zero. The paper's entropy code is not used: codes are
    packed at their fixed width.
    """

    error_feedback: bool = False
    """ECQ-SGD's addition; off in QSGD."""
    rounding: Rounding = "stochastic"
    """QSGD's own."""
