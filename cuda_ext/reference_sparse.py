"""The sparse code of widths below one bit in plain torch: what is right, byte for byte.

The notes in csrc/sparse_math.h ([Sparse payload], [Sparse levels]) explain the choices.
Shape suffixes: N elements, K entries, H bits of the high parts.
"""

import torch
from torch import Tensor

from mqgrad.cuda_ext.checks import SparseLayout, sparse_layout
from mqgrad.cuda_ext.reference import keep_error
from mqgrad.cuda_ext.reference_bits import pack, unpack

LEVELS = 8
VALUE_BITS = 4
HEADER_BYTES = 8
HALF_OCTAVE = 1 << 22
HALF_OCTAVES = 24
LEVEL_ERROR = 1 / 6394
INFINITY_KEY = 0x7F800000


def sparse_encode(
    x: Tensor,
    elements_per_bit: int,
    residual: Tensor | None = None,
    alpha: float = 1.0,
    beta: float = 1.0,
) -> Tensor:
    """See `mqgrad.cuda_ext.sparse_encode`."""
    x = x.detach().float()
    layout = sparse_layout(x.numel(), elements_per_bit)
    payload = _encode(x if residual is None else x + alpha * residual, layout)
    if residual is not None:
        keep_error(x, residual, sparse_decode(payload, x.numel(), elements_per_bit), beta)
    return payload


def sparse_encode_into(
    payload: Tensor,
    x: list[Tensor],
    offsets: list[int],
    residual: Tensor | None,
    numel: int,
    elements_per_bit: int,
    alpha: float,
    beta: float,
) -> None:
    """The same as the op, of a vector in one tensor."""
    payload.copy_(sparse_encode(x[0], elements_per_bit, residual, alpha, beta))


def sparse_decode(payload: Tensor, numel: int, elements_per_bit: int) -> Tensor:
    """See `mqgrad.cuda_ext.sparse_decode`."""
    out = torch.zeros(numel, dtype=torch.float32, device=payload.device)
    sparse_decode_add_(out, payload, elements_per_bit)
    return out


def sparse_decode_add_(accumulator: Tensor, payload: Tensor, elements_per_bit: int) -> None:
    """See `mqgrad.cuda_ext.sparse_decode_add_`."""
    layout = sparse_layout(accumulator.numel(), elements_per_bit)
    if layout.numel == 0:
        return
    floor, top = (payload[:HEADER_BYTES].clone().view(torch.int32).long() & 0x7FFFFFFF).tolist()
    if top >= INFINITY_KEY:
        accumulator.add_(torch.nan)
        return
    high_H = unpack(payload[HEADER_BYTES : HEADER_BYTES + layout.high_bytes], layout.high_bits, 1)
    entries_K = unpack(payload[HEADER_BYTES + layout.high_bytes :], layout.count, layout.entry_bits)
    ones_K = high_H.nonzero().flatten()[: layout.count]
    entries_K = entries_K[: len(ones_K)]
    part_K = ones_K - torch.arange(len(ones_K), device=payload.device)
    index_K = (part_K << layout.low_bits) | (entries_K >> VALUE_BITS)
    before_K = torch.cat([index_K.new_tensor([-1]), index_K]).cummax(0).values[:-1]
    usable_K = (index_K > before_K) & (index_K < layout.numel)
    value_K = _magnitudes(min(floor, top), top, payload.device)[entries_K % LEVELS]
    value_K = torch.where((entries_K >> 3) & 1 == 1, -value_K, value_K)
    accumulator[index_K[usable_K]] += value_K[usable_K]


def _encode(x_N: Tensor, layout: SparseLayout) -> Tensor:
    if layout.numel == 0:
        return x_N.new_empty(0, dtype=torch.uint8)
    key_N = x_N.contiguous().view(torch.int32).long() & 0x7FFFFFFF
    top = int(key_N.max())
    if top >= INFINITY_KEY:
        nan = x_N.new_full((2,), torch.nan).view(torch.uint8)
        return torch.cat([nan, nan.new_zeros(layout.payload_bytes - HEADER_BYTES)])
    index_K = _largest(key_N, layout.count, _key_below(top, HALF_OCTAVES))
    index_K = index_K[key_N[index_K] >= _best_floor(key_N[index_K], top)]
    key_K = key_N[index_K]
    floor = int(key_K.min()) if len(key_K) else 0
    level_K = (key_K - floor) * LEVELS // (top - floor + 1)
    negative_K = (x_N[index_K] < 0).long()
    low_K = index_K & ((1 << layout.low_bits) - 1)
    entries_K = (low_K << VALUE_BITS) | (negative_K << 3) | level_K
    high_H = key_N.new_zeros(layout.high_bits)
    high_H[(index_K >> layout.low_bits) + torch.arange(len(index_K), device=x_N.device)] = 1
    unused = layout.count - len(index_K)
    header = torch.tensor([floor, top], dtype=torch.int32, device=x_N.device).view(torch.uint8)
    packed = pack(torch.nn.functional.pad(entries_K, (0, unused)), layout.entry_bits)
    return torch.cat([header, pack(high_H, 1), packed])


def _largest(key_N: Tensor, count: int, lowest: int) -> Tensor:
    """Indices, ascending, of the ``count`` largest keys from ``lowest`` on; of equal ones, the first."""
    order = key_N.sort(descending=True, stable=True).indices[:count]
    return order[key_N[order] >= lowest].sort().values


def _key_below(top: int, half_octaves: int) -> int:
    return max(top - half_octaves * HALF_OCTAVE + 1, 1)


def _best_floor(key_K: Tensor, top: int) -> int:
    """The lowest key worth keeping, from counts by half octaves below the top."""
    if top == 0:
        return 1
    counts = torch.bincount((top - key_K) // HALF_OCTAVE, minlength=HALF_OCTAVES).tolist()
    energies = [count * 0.5**j for j, count in enumerate(counts)]
    dropped, kept, errors = 0.0, 0.0, []
    for energy in energies:
        dropped += energy
    for h, energy in enumerate(energies, start=1):
        kept += energy
        dropped -= energy
        errors.append(dropped + kept * (h * h * LEVEL_ERROR))
    return _key_below(top, errors.index(min(errors)) + 1)


def _magnitudes(floor: int, top: int, device: torch.device) -> Tensor:
    span = top - floor + 1
    level = torch.arange(LEVELS, device=device)
    middle = floor + (2 * level + 1) * span // (2 * LEVELS)
    lowest = floor + (level * span + LEVELS - 1) // LEVELS
    return torch.minimum(middle, lowest + HALF_OCTAVE).to(torch.int32).view(torch.float32)
