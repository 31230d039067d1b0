"""The rotated codes in plain torch: what is right, byte for byte. See Note [Rotation] in csrc/rotation.h.

Shape suffixes: B buckets, L elements of a bucket, N elements.
"""

import math

import torch
from torch import Tensor

from mqgrad.cuda_ext import reference

SEED_BYTES = 8
COLUMNS = 16

CODEBOOK = {
    1: (0.797884561,),
    2: (0.452780035, 1.510417608),
    3: (0.245094179, 0.756005281, 1.343909279, 2.151945705),
    4: (
        *(0.128395030, 0.388048299, 0.656759119, 0.942340456),
        *(1.256231197, 1.618046386, 2.069017227, 2.732589571),
    ),
}
"""Non-negative codewords of the Lloyd-Max quantizer of a standard Gaussian, by width (Max 1960)."""


def encode_rotated(x: Tensor, bits: int, bucket_size: int, unbiased: bool, seed: int) -> Tensor:
    """See `mqgrad.cuda_ext.encode_rotated`."""
    header = torch.tensor([seed], dtype=torch.int64, device=x.device).view(torch.uint8)
    num_buckets = -(-x.numel() // bucket_size)
    padded = torch.nn.functional.pad(x.float(), (0, -x.numel() % bucket_size))
    y_BL = _rotate(padded.view(num_buckets, bucket_size) * _factors(seed, bucket_size, x.device))
    norm_sq_B = _tree_sum(y_BL.double() * y_BL.double())
    sigma_B = (norm_sq_B / bucket_size).sqrt().float()
    usable_B = (sigma_B > 0) & sigma_B.isfinite()
    inverse_B = torch.where(usable_B, 1 / torch.where(usable_B, sigma_B, 1.0), 0.0)
    u_BL = torch.where(usable_B[:, None], y_BL * inverse_B[:, None], 0.0)
    codes_BL = _codes(u_BL, bits)
    word_BL = _words(bits, x.device)[codes_BL].double()
    product_B = _tree_sum(y_BL.double() * word_BL)
    scale_B = norm_sq_B / product_B if unbiased else product_B / _tree_sum(word_BL * word_BL)
    scale_B = torch.where(usable_B, scale_B.float(), torch.where(sigma_B == 0, 0.0, torch.nan))
    return torch.cat([header, scale_B.view(torch.uint8), reference._pack(codes_BL.flatten(), bits)])


def decode_rotated(payload: Tensor, numel: int, bits: int, bucket_size: int) -> Tensor:
    """See `mqgrad.cuda_ext.decode_rotated`."""
    num_buckets = -(-numel // bucket_size)
    seed = int(payload[:SEED_BYTES].clone().view(torch.int64))
    scale_B, codes = payload[SEED_BYTES:].tensor_split([4 * num_buckets])
    scale_B = scale_B.clone().view(torch.float32)
    scale_B = torch.where(scale_B.isfinite(), scale_B, torch.nan)
    codes_BL = reference._unpack(codes, num_buckets * bucket_size, bits).view(num_buckets, bucket_size)
    y_BL = _words(bits, payload.device)[codes_BL] * scale_B[:, None]
    return (_rotate_back(y_BL) * _factors(seed, bucket_size, payload.device)).flatten()[:numel]


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
    """L times the inverse of :func:`_rotate`."""
    columns = min(COLUMNS, v_BL.shape[1])
    v_BCR = v_BL.view(len(v_BL), columns, v_BL.shape[1] // columns)
    v_BRC = _transform_columns(_transform_columns(v_BCR, descending=True).transpose(1, 2))
    return v_BRC.reshape(v_BL.shape)


def _transform_columns(v_BRC: Tensor, descending: bool = False) -> Tensor:
    """Butterflies of rows at distance 1, 2, 4, …, or in the reverse order, which rounds differently."""
    num_buckets, rows, columns = v_BRC.shape
    distances = [2**k for k in range(rows.bit_length() - 1)]
    for distance in reversed(distances) if descending else distances:
        pairs = v_BRC.reshape(num_buckets, rows // (2 * distance), 2, distance, columns)
        a, b = pairs.unbind(2)
        v_BRC = torch.stack([a + b, a - b], dim=2).reshape(num_buckets, rows, columns)
    return v_BRC


def _tree_sum(v_BL: Tensor) -> Tensor:
    while v_BL.shape[1] > 1:
        half = v_BL.shape[1] // 2
        v_BL = v_BL[:, :half] + v_BL[:, half:]
    return v_BL[:, 0]


def _factors(seed: int, size: int, device: torch.device) -> Tensor:
    """D / √L: random signs."""
    element_L = torch.arange(size, device=device)
    word_L = reference.random_words(seed, torch.zeros(1, dtype=torch.int64, device=device), element_L >> 5)[0]
    signs_L = 1.0 - 2.0 * ((word_L >> (element_L & 31)) & 1).float()
    return signs_L * torch.tensor(1 / math.sqrt(size), dtype=torch.float32, device=device)


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
