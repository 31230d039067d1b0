"""The mean of gradients in rotated codes."""

import dataclasses
import functools

from mqgrad import cuda_ext

from ..codecs.quantization_noise import ROTATED_GAMMA
from ..codecs.rotation import ROTATED_WIDTHS, RotationCodec
from ..widths import Width
from .coded import CodedMean
from .feedback import FeedbackGain


def rotated_coefficients(bits: Width) -> tuple[float, float]:
    """α and β of the unbiased code, whose γ is known: α = 1/(1 + γ) is the most stable, see ``FeedbackGain``."""
    return 1 / (1 + ROTATED_GAMMA[bits]), 1.0


@dataclasses.dataclass(kw_only=True)
class Rotated(CodedMean):
    """Rotated codes at 1-4 bits (DRIVE, NeurIPS 2021, and EDEN, ICML 2022), plain fp32 at 32.

    At equal width the error is smaller than that of uniform levels, for a transform of each bucket on both sides.

    Raises:
        ValueError: for a bucket size that is no power of two in 64..65536.
    """

    unbiased: bool = False
    """Scale for no bias instead of for the least error. Without bias are dense buckets: of a parameter of a few
    elements, or one whose elements are mostly zero, error feedback has to send later what never arrives."""

    def __post_init__(self) -> None:
        super().__post_init__()
        cuda_ext.rotated_bytes(0, 1, self.bucket_size)
        self.codec(1)  # checks the blocks

    def codec(self, bits: Width) -> RotationCodec:
        return _codec(bits, self.bucket_size, self.unbiased)

    @property
    def rotated_widths(self) -> tuple[Width, ...]:
        return ROTATED_WIDTHS

    def learns_gain(self, bits: Width) -> bool:
        return False

    def coefficients(
        self, gain: FeedbackGain, bits: Width, *, of_deltas: bool = False
    ) -> tuple[float, float]:
        if not self.unbiased or bits not in ROTATED_GAMMA:
            return super().coefficients(gain, bits)
        return rotated_coefficients(bits)

    @property
    def widths(self) -> tuple[Width, ...]:
        return (*ROTATED_WIDTHS, 32)


@functools.lru_cache(typed=True)
def _codec(bits: Width, bucket_size: int, unbiased: bool) -> RotationCodec:
    """One for all buckets and iterations."""
    return RotationCodec(bits=int(bits), bucket_size=bucket_size, unbiased=unbiased)
