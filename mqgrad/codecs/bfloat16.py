"""Elements as bfloat16: width 16."""

import dataclasses
from typing import ClassVar

from mqgrad import cuda_ext

from .compiled_codec import CompiledCodec, Ops


@dataclasses.dataclass(frozen=True, slots=True)
class Bfloat16Codec(CompiledCodec):
    """Element by element: neither buckets nor seeds play a part."""

    ops: ClassVar = Ops(
        payload_bytes=lambda numel: 2 * numel,
        encode=cuda_ext.encode_bfloat16,
        decode=cuda_ext.decode_bfloat16,
        decode_into=cuda_ext.decode_bfloat16_into,
        decode_add_=cuda_ext.decode_bfloat16_add_,
        decode_mean_into=cuda_ext.decode_bfloat16_mean_into,
        reduce_encode=cuda_ext.reduce_encode_bfloat16,
    )

    @property
    def settings(self) -> tuple[int, ...]:
        return ()
