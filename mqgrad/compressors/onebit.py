"""1-bit SGD."""

import dataclasses

from ..codecs.onebit import OneBitCodec
from ..widths import Width
from .coded import CodedMean


@dataclasses.dataclass(kw_only=True)
class OneBit(CodedMean):
    """1-bit SGD (Seide et al., Interspeech 2014): one bit an element and two values a bucket, with error feedback
    (α = β = 1), with more than two ranks on the way to the owner of a shard and back.

    Raises:
        ValueError: for a bucket size that is not a positive multiple of 8.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.bucket_size < 8 or self.bucket_size % 8:
            raise ValueError(f"bucket_size {self.bucket_size!r} must be a positive multiple of 8")

    def codec(self, bits: Width) -> OneBitCodec:
        return OneBitCodec(self.bucket_size)

    @property
    def widths(self) -> tuple[Width, ...]:
        return (1,)
