"""Quantize, pack, unpack and reduce gradients: the C++ extension, or its torch reference where it was not built."""

from mqgrad.cuda_ext.bfloat16 import (
    decode_bfloat16,
    decode_bfloat16_add_,
    decode_bfloat16_into,
    decode_bfloat16_mean_into,
    encode_bfloat16,
    reduce_encode_bfloat16,
)
from mqgrad.cuda_ext.checks import minmax_bytes
from mqgrad.cuda_ext.checksum import CHECKSUM_BYTES, write_checksums_, wrong_checksums
from mqgrad.cuda_ext.figures import SKETCH_SIZE, gradient_figures
from mqgrad.cuda_ext.library import IMPLEMENTATION, has_cpu_ops
from mqgrad.cuda_ext.minmax import decode_minmax, encode_minmax
from mqgrad.cuda_ext.parts import (
    decode_parts_into,
    decode_rotated_parts_into,
    encode_parts,
    encode_rotated_parts,
    sparse_decode_parts_into,
    sparse_encode_parts,
)
from mqgrad.cuda_ext.rotation import (
    decode_rotated,
    decode_rotated_add_,
    decode_rotated_into,
    decode_rotated_mean_into,
    encode_rotated,
    reduce_encode_rotated,
    rotated_bytes,
)
from mqgrad.cuda_ext.scattered import Scattered, Vector, whole
from mqgrad.cuda_ext.sparse import (
    sparse_bytes,
    sparse_count,
    sparse_decode,
    sparse_decode_add_,
    sparse_decode_into,
    sparse_decode_mean_into,
    sparse_encode,
)
from mqgrad.cuda_ext.uniform import (
    decode,
    decode_add_,
    decode_into,
    decode_mean_into,
    encode,
    payload_bytes,
    reduce_encode,
)

__all__ = [
    "CHECKSUM_BYTES",
    "IMPLEMENTATION",
    "SKETCH_SIZE",
    "Scattered",
    "Vector",
    "decode",
    "decode_add_",
    "decode_bfloat16",
    "decode_bfloat16_add_",
    "decode_bfloat16_into",
    "decode_bfloat16_mean_into",
    "decode_into",
    "decode_mean_into",
    "decode_minmax",
    "decode_parts_into",
    "decode_rotated",
    "decode_rotated_add_",
    "decode_rotated_into",
    "decode_rotated_mean_into",
    "decode_rotated_parts_into",
    "encode",
    "encode_bfloat16",
    "encode_minmax",
    "encode_parts",
    "encode_rotated",
    "encode_rotated_parts",
    "gradient_figures",
    "has_cpu_ops",
    "minmax_bytes",
    "payload_bytes",
    "reduce_encode",
    "reduce_encode_bfloat16",
    "reduce_encode_rotated",
    "rotated_bytes",
    "sparse_bytes",
    "sparse_count",
    "sparse_decode",
    "sparse_decode_add_",
    "sparse_decode_into",
    "sparse_decode_mean_into",
    "sparse_decode_parts_into",
    "sparse_encode",
    "sparse_encode_parts",
    "whole",
    "write_checksums_",
    "wrong_checksums",
]
