"""The default: largest magnitudes below one bit, rotated at 1-3, uniform levels at 4-8, bfloat16, plain fp32.

Note [Slow feedback]. With v = x + α·h sent as Q(v) = v + e, and h ← h + x − Q(v), what arrives in iteration t
is x and the error e_t − α·(e_(t−1) + (1 − α)·e_(t−2) + (1 − α)²·e_(t−3) + …). Over many iterations it adds up
to nothing, for any α in (0, 1]; were e white, its energy would be 2/(2 − α) of e's own. Textbook feedback, α =
1, doubles it. Momentum averages that away, but Adam divides by it, as its second moment cannot tell error from
gradient; and rounding to nearest sends in bursts what it has kept for long. α = 0.2 repays within about five
iterations, less than a momentum of 0.9 looks back, and adds 11 % (measured: docs/compressors.md). Below one bit
most elements arrive by feedback alone, and α is 1, as it is at 16 bits, where there is next to nothing to feed
back. It is not slow either where rounds of local iterations average what parameters have moved: no optimizer
divides by that, and a round is a long time to wait. The price of a small α: ‖h‖² = ‖e‖²/(α·(2 − α)) is larger,
and so is what is handed over when 32 bits follow.
"""

import dataclasses
import functools

from ..codecs.codec import Rounding, codec_at
from ..codecs.rotation import FEW_BITS, few_bits_rotated
from ..codecs.vector_codec import VectorCodec
from ..widths import DENSE_WIDTHS, Width
from .coded import CodedMean
from .feedback import FeedbackGain
from .rotated import rotated_coefficients


@dataclasses.dataclass(kw_only=True)
class Quantized(CodedMean):
    """Any width of ``mqgrad.WIDTHS``: uniform levels and a scale per bucket; with nearest rounding, an unbiased
    rotation at 1-3 bits; below one bit, the largest magnitudes.

    Below one bit the elements of a shard compete, so that what is sent for a parameter depends on its neighbours.
    DDP regroups its buckets after the first iteration and after a restart: at those widths a resumed run is not
    bit-exact, though it loses nothing, because what was not sent stays in the residuals.

    Raises:
        ValueError: for an unknown rounding or bucket size; with nearest rounding, one that is no multiple of 64.
    """

    rounding: Rounding = "nearest"
    """``nearest`` is contractive and needs error feedback; ``stochastic`` is unbiased and noisier, and
    uniform at 1-3 bits, too."""
    feedback_gain: float = 0.2
    """α, at most, of gradients at 1-8 bits: how much of a residual is sent along. See Note [Slow feedback]."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.codec(1)  # checks the settings
        if not 0 < self.feedback_gain <= 1:
            raise ValueError(
                f"feedback_gain must be above 0 and at most 1, not {self.feedback_gain!r}; "
                "to send no residual at all, set error_feedback=false"
            )

    @property
    def parameter_widths(self) -> tuple[Width, ...]:
        """From one bit up: a sparse code picks among whole shards. Beside other widths, 32 is coded as raw fp32."""
        return tuple(bits for bits in self.widths if bits >= 1)

    @property
    def rotated_widths(self) -> tuple[Width, ...]:
        return FEW_BITS if self.rounding == "nearest" else ()

    def codec(self, bits: Width) -> VectorCodec:
        return _codec(bits, self.bucket_size, self.rounding)

    def learns_gain(self, bits: Width) -> bool:
        return self.rounding == "stochastic" and super().learns_gain(bits)

    def coefficients(
        self, gain: FeedbackGain, bits: Width, *, of_deltas: bool = False
    ) -> tuple[float, float]:
        """Of Note [Slow feedback]; at most what is stable."""
        is_rotated = bits in self.rotated_widths
        alpha, beta = rotated_coefficients(bits) if is_rotated else super().coefficients(gain, bits)
        if not 1 <= bits <= 8:
            return alpha, beta
        return (alpha if of_deltas else min(alpha, self.feedback_gain)), beta


@functools.lru_cache(typed=True)
def _codec(bits: Width, bucket_size: int, rounding: Rounding) -> VectorCodec:
    """One for all buckets and iterations."""
    if rounding == "nearest":
        return few_bits_rotated(bits, bucket_size)
    return codec_at(bits, bucket_size=bucket_size, rounding=rounding)


@dataclasses.dataclass(kw_only=True)
class QSGD(Quantized):
    """QSGD (Alistarh et al., NeurIPS 2017): stochastic rounding, the largest magnitude as the scale, no feedback.

    At b bits there are s = 2^(b−1) − 1 levels on each side of zero. The paper's entropy code is not used: codes are
    packed at their fixed width.
    """

    error_feedback: bool = False
    """ECQ-SGD's addition; off in QSGD."""
    rounding: Rounding = "stochastic"
    """QSGD's own."""
    feedback_gain: float = dataclasses.field(init=False, repr=False, default=1.0)
    """Not set here: ECQ-SGD has coefficients of its own."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.rounding != "stochastic":
            raise ValueError(f"rounding {self.rounding!r}: QSGD rounds at random; see quantized for nearest")

    @property
    def widths(self) -> tuple[Width, ...]:
        """Not below one bit: without feedback, what a sparse code leaves out would be lost."""
        return DENSE_WIDTHS
