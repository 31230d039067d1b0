"""The default: largest magnitudes below one bit, rotated signs at 1, uniform levels at 2-8, bfloat16, plain fp32."""

import dataclasses
import math

from ..codec import Codec, Rounding
from ..feedback import FeedbackGain
from ..vector_codec import VectorCodec
from ..widths import DENSE_WIDTHS, Width
from .coded import CodedMean
from .rotated import OneBitRotated

ONE_BIT_ALPHA = 2 / math.pi
"""1/(1 + γ), most stable for an unbiased code (see :class:`FeedbackGain`): that of rotated signs has γ = π/2 − 1."""


@dataclasses.dataclass(kw_only=True, slots=True)
class Quantized(CodedMean):
    """Any width of ``mqgrad.WIDTHS``: uniform levels and a scale per bucket; with nearest rounding, signs after an
    unbiased rotation at one bit; below, the largest magnitudes.

    Below one bit the elements of a shard compete, so that what is sent for a parameter depends on its neighbours.
    DDP regroups its buckets after the first iteration and after a restart: at those widths a resumed run is not
    bit-exact, though it loses nothing, because what was not sent stays in the residuals.

    Raises:
        ValueError: for an unknown rounding or bucket size.
    """

    rounding: Rounding = "nearest"
    """``nearest`` is contractive and needs error feedback; ``stochastic`` is unbiased and noisier, at 1 bit too."""

    def __post_init__(self) -> None:
        super(Quantized, self).__post_init__()  # slots make a new class, which super() alone does not find
        self.codec  # noqa: B018 (checks the settings)

    @property
    def parameter_widths(self) -> tuple[Width, ...]:
        """From one bit up: a sparse code picks among whole shards. Beside other widths, 32 is coded as raw fp32."""
        return tuple(bits for bits in self.widths if bits >= 1)

    @property
    def codec(self) -> VectorCodec:
        codec = Codec(bucket_size=self.bucket_size, rounding=self.rounding)
        return OneBitRotated(others=codec) if self.rounding == "nearest" else codec

    def coefficients(self, gain: FeedbackGain, bits: Width) -> tuple[float, float]:
        if bits == 1 and self.rounding == "nearest":
            return ONE_BIT_ALPHA, 1.0
        return super(Quantized, self).coefficients(gain, bits)


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

    @property
    def widths(self) -> tuple[Width, ...]:
        """Not below one bit: without feedback, what a sparse code leaves out would be lost."""
        return DENSE_WIDTHS
