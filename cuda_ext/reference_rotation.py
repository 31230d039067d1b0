"""The rotated codes in plain torch: what is right, byte for byte. See Note [Rotation] in csrc/rotation.h.

Shape suffixes: B buckets, L elements of a bucket, N elements.
"""

from typing import Any

import torch
from torch import Tensor

from mqgrad.cuda_ext.reference_bits import pack, unpack
from mqgrad.cuda_ext.reference_random import random_words

SEED_BYTES = 8
COLUMNS = 16

CODEBOOK = {
    1: (1,),
    2: (3, 10),
    3: (7, 22, 39, 62),
    4: (3, 9, 15, 21, 28, 36, 46, 61),
}
"""Non-negative codewords of the Lloyd-Max quantizer of a Gaussian (Max 1960), rounded to integers, by width."""
MEAN_MAGNITUDE = {1: 1.0, 2: 5.2828, 3: 23.036, 4: 17.809}
"""Mean of |u| of Note [Rotation] in csrc/rotation.h where the codebook fits best, by width."""


def encode_rotated(x: Tensor, bits: int, bucket_size: int, unbiased: bool, seed: int) -> Tensor:
    """See `mqgrad.cuda_ext.encode_rotated`."""
    header = torch.tensor([seed], dtype=torch.int64, device=x.device).view(torch.uint8)
    num_buckets = -(-x.numel() // bucket_size)
    padded = torch.nn.functional.pad(x.float(), (0, -x.numel() % bucket_size))
    y_BL = _rotate(padded.view(num_buckets, bucket_size) * _signs(seed, bucket_size, x.device))
    size = y_BL.new_tensor(MEAN_MAGNITUDE[bits]) * bucket_size
    unit_B = _tree_sum(y_BL.abs()) / size
    usable_B = unit_B.isfinite() & (1 / unit_B).isfinite()
    inverse_B = torch.where(usable_B, 1 / unit_B, 0.0)
    u_BL = torch.where(usable_B[:, None], y_BL * inverse_B[:, None], 0.0)
    codes_BL = _codes(u_BL, bits)
    word_BL = _words(bits, x.device)[codes_BL]
    product_B = _tree_sum(u_BL * word_BL)
    ratio_B = _tree_sum(u_BL * u_BL) / product_B if unbiased else product_B / _tree_sum(word_BL * word_BL)
    scale_B = unit_B * ratio_B / bucket_size
    scale_B = torch.where(usable_B, scale_B, torch.where(unit_B.isfinite(), 0.0, torch.nan))
    return torch.cat([header, scale_B.view(torch.uint8), pack(codes_BL.flatten(), bits)])


def encode_rotated_into(
    payload: Tensor, x: list[Tensor], offsets: list[int], residual: None, numel: int, *settings: Any
) -> None:
    """The same as the op, of a vector in one tensor; feedback is more steps, in `mqgrad.cuda_ext.encode_rotated`."""
    *code, _alpha, _beta = settings
    payload.copy_(encode_rotated(x[0], *code))


def decode_rotated(payload: Tensor, numel: int, bits: int, bucket_size: int) -> Tensor:
    """See `mqgrad.cuda_ext.decode_rotated`."""
    num_buckets = -(-numel // bucket_size)
    seed = int(payload[:SEED_BYTES].clone().view(torch.int64))
    scale_B, codes = payload[SEED_BYTES:].tensor_split([4 * num_buckets])
    scale_B = scale_B.clone().view(torch.float32)
    scale_B = torch.where(scale_B.isfinite(), scale_B, torch.nan)
    codes_BL = unpack(codes, num_buckets * bucket_size, bits).view(num_buckets, bucket_size)
    rotated_back_BL = _rotate_back(_words(bits, payload.device)[codes_BL])
    values_BL = rotated_back_BL * scale_B[:, None] * _signs(seed, bucket_size, payload.device)
    return values_BL.flatten()[:numel]


def decode_rotated_add_(accumulator: Tensor, payload: Tensor, bits: int, bucket_size: int) -> None:
    """See `mqgrad.cuda_ext.decode_rotated_add_`."""
    accumulator.add_(decode_rotated(payload, accumulator.numel(), bits, bucket_size))


def _rotate(v_BL: Tensor) -> Tensor:
    """H v: the columns of the matrix transformed, transposed, and the columns transformed again."""
    columns = min(COLUMNS, v_BL.shape[1])
    v_BRC = _transform_columns(v_BL.view(len(v_BL), v_BL.shape[1] // columns, columns))
    v_BCR = _transform_columns(v_BRC.transpose(1, 2))
    return v_BCR.reshape(v_BL.shape)


def _rotate_back(v_BL: Tensor) -> Tensor:
    """L times the inverse of :func:`_rotate`; exact for codewords, in any order."""
    columns = min(COLUMNS, v_BL.shape[1])
    v_BCR = v_BL.view(len(v_BL), columns, v_BL.shape[1] // columns)
    v_BRC = _transform_columns(_transform_columns(v_BCR).transpose(1, 2))
    return v_BRC.reshape(v_BL.shape)


def _transform_columns(v_BRC: Tensor) -> Tensor:
    """Butterflies of rows at distance 1, 2, 4, …"""
    num_buckets, rows, columns = v_BRC.shape
    for distance in (2**k for k in range(rows.bit_length() - 1)):
        pairs = v_BRC.reshape(num_buckets, rows // (2 * distance), 2, distance, columns)
        a, b = pairs.unbind(2)
        v_BRC = torch.stack([a + b, a - b], dim=2).reshape(num_buckets, rows, columns)
    return v_BRC


def _tree_sum(v_BL: Tensor) -> Tensor:
    while v_BL.shape[1] > 1:
        half = v_BL.shape[1] // 2
        v_BL = v_BL[:, :half] + v_BL[:, half:]
    return v_BL[:, 0]


def _signs(seed: int, size: int, device: torch.device) -> Tensor:
    """The diagonal of D in Note [Rotation]: random signs, float32 [size]."""
    element_L = torch.arange(size, device=device)
    word_L = random_words(seed, torch.zeros(1, dtype=torch.int64, device=device), element_L >> 5)[0]
    return 1.0 - 2.0 * ((word_L >> (element_L & 31)) & 1).float()


def _words(bits: int, device: torch.device) -> Tensor:
    """All codewords, ascending."""
    positive = torch.tensor(CODEBOOK[bits], dtype=torch.float32, device=device)
    return torch.cat([-positive.flip(0), positive])


def _codes(u_BL: Tensor, bits: int) -> Tensor:
    positive = _words(bits, u_BL.device)[2 ** (bits - 1) :]
    thresholds = (positive[:-1] + positive[1:]) * 0.5
    index_BL = (u_BL.abs()[..., None] > thresholds).sum(-1)
    count = 2 ** (bits - 1)
    return torch.where(u_BL < 0, count - 1 - index_BL, count + index_BL)
