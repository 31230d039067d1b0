"""The largest magnitudes alone: widths below one bit."""

import dataclasses
from typing import ClassVar

from mqgrad import cuda_ext

from ..widths import Width
from .compiled_codec import CompiledCodec, Ops


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class SparseCodec(CompiledCodec):
    """Of the whole vector, so that neither buckets nor seeds play a part."""

    ops: ClassVar = Ops(
        payload_bytes=cuda_ext.sparse_bytes,
        encode=cuda_ext.sparse_encode,
        decode=cuda_ext.sparse_decode,
        decode_into=cuda_ext.sparse_decode_into,
        decode_add_=cuda_ext.sparse_decode_add_,
        decode_mean_into=cuda_ext.sparse_decode_mean_into,
        encode_parts=cuda_ext.sparse_encode_parts,
        decode_parts_into=cuda_ext.sparse_decode_parts_into,
    )

    bits: Width

    @property
    def settings(self) -> tuple[int, ...]:
        """Elements per bit."""
        return (round(1 / self.bits),)
