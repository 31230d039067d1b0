"""What the ops demand of their arguments, and the sizes that follow from them."""

import dataclasses
import functools
import operator

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

INPUT_DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
_LARGEST = torch.finfo(torch.float32).max


def payload_bytes(numel: int, bits: int, bucket_size: int) -> int:
    # NumPy's integers would overflow.
    numel, bits, bucket_size = map(operator.index, (numel, bits, bucket_size))
    return 4 * -(-numel // bucket_size) + -(-numel * bits // 8)


def minmax_bytes(rows: int, columns: int, bits: int) -> int:
    """Length of what `encode_minmax` returns for [rows, columns]."""
    rows, columns, bits = map(operator.index, (rows, columns, bits))
    return 8 * columns + -(-rows * columns * bits // 8) if rows * columns else 0


def as_int64(seed: int, name: str = "seed") -> int:
    seed = operator.index(seed)  # also NumPy's integers, which do not fit together with Python's
    if not -(2**63) <= seed < 2**64:
        raise ValueError(f"{name} must fit 64 bits, got {seed}")
    return seed - 2**64 if seed >= 2**63 else seed


def require_layout(numel: int, bits: int, bucket_size: int) -> None:
    if not type(numel) is type(bits) is type(bucket_size) is int:
        for name, value in (("bits", bits), ("bucket_size", bucket_size), ("numel", numel)):
            if not hasattr(value, "__index__"):
                raise TypeError(f"{name} must be an integer, got {value!r}")
    if not 1 <= bits <= 8:
        raise ValueError(f"bits must be in 1..8, got {bits}")
    require_bucket_size(bucket_size)
    if numel < 0:
        raise ValueError(f"numel must not be negative, got {numel}")


def require_bucket_size(bucket_size: int) -> None:
    if not 1 <= bucket_size < 2**63:
        raise ValueError(f"bucket_size must be at least 1 and below 2^63, got {bucket_size}")


def require_input(x: Tensor, dimensions: int) -> None:
    if not isinstance(x, Tensor):
        raise TypeError(f"x must be a tensor, got {type(x).__name__}")
    if x.dtype not in INPUT_DTYPES:
        raise TypeError(f"x must be float32, float64, float16 or bfloat16, got {x.dtype}")
    if x.dim() != dimensions:
        raise ValueError(f"x must have {dimensions} dimension(s), got shape {tuple(x.shape)}")


def require_bucket_ids(bucket_ids: Tensor | None, numel: int, device: torch.device, bucket_size: int) -> None:
    if bucket_ids is None:
        return
    num_buckets = -(-numel // bucket_size)
    if bucket_ids.dtype != torch.int64:
        raise TypeError(f"bucket_ids must be int64, got {bucket_ids.dtype}")
    if bucket_ids.shape != (num_buckets,):
        raise ValueError(f"bucket_ids must have shape ({num_buckets},), got {tuple(bucket_ids.shape)}")
    if bucket_ids.device != device:
        raise ValueError(f"bucket_ids is on {bucket_ids.device}, the other tensors on {device}")
    if not bucket_ids.is_contiguous():
        raise ValueError("bucket_ids must be contiguous")


def require_floats(name: str, tensor: Tensor, numel: int, device: torch.device) -> None:
    if tensor.dtype != torch.float32:
        raise TypeError(f"{name} must be float32, got {tensor.dtype}")
    if tensor.shape != (numel,):
        raise ValueError(f"{name} must have shape ({numel},), got {tuple(tensor.shape)}")
    if tensor.device != device:
        raise ValueError(f"{name} is on {tensor.device}, the other tensors on {device}")
    if not tensor.is_contiguous():
        raise ValueError(f"{name} is written in place and must be contiguous")
    if not torch.compiler.is_compiling() and tensor.is_neg():
        raise ValueError(
            f"{name} is written in place and must not be a negated view: give resolve_neg() of it"
        )


def require_feedback(
    residual: Tensor | None,
    alpha: float,
    beta: float,
    numel: int,
    device: torch.device,
    **others: Tensor | None,
) -> None:
    """Refuse alpha and beta beyond fp32, and a residual that is no float32 [numel] on the device or shares memory
    with ``others``."""
    if not (abs(alpha) <= _LARGEST and abs(beta) <= _LARGEST):
        raise ValueError(f"alpha and beta must be finite, got {alpha} and {beta} for fp32")
    if residual is not None:
        require_floats("residual", residual, numel, device)
        require_apart("residual", residual, **others)


def require_payload(payload: Tensor, expected_bytes: int) -> None:
    require_bytes("payload", payload, (expected_bytes,))


def require_payloads(payloads: Tensor, expected_bytes: int) -> None:
    require_bytes("payloads", payloads, (max(1, len(payloads)), expected_bytes))


def rows_of(payloads: Tensor) -> Tensor:
    """Payloads [W, P] as the kernels take them: on the CPU there may be gaps between rows, elsewhere not."""
    lie_apart = payloads.stride(1) == 1 and payloads.stride(0) >= payloads.shape[1]
    return payloads if payloads.device.type == "cpu" and lie_apart else payloads.contiguous()


def payload_out(out: Tensor | None, expected_bytes: int, device: torch.device) -> Tensor:
    """Where a payload is to be written: as given, or a new tensor."""
    if out is None:
        return torch.empty(expected_bytes, dtype=torch.uint8, device=device)
    require_bytes("out", out, (expected_bytes,))
    if out.device != device:
        raise ValueError(f"out is on {out.device}, the other tensors on {device}")
    if not out.is_contiguous():
        raise ValueError("out is written in place and must be contiguous")
    return out


def require_apart(name: str, written: Tensor, **others: Tensor | None) -> None:
    """Raise ``ValueError`` if what a kernel writes shares memory with what it reads: its threads do both at once."""
    if torch.compiler.is_compiling():  # there is no memory yet
        return
    for other_name, other in others.items():
        if other is not None and _overlap(written, other):
            raise ValueError(f"{name} is written in place and must not share memory with {other_name}")


def _overlap(a: Tensor, b: Tensor) -> bool:
    if isinstance(a, FakeTensor) or isinstance(b, FakeTensor):  # they have no memory
        return False
    starts = a.data_ptr(), b.data_ptr()
    first, second = (a, b) if starts[0] <= starts[1] else (b, a)
    return all(starts) and abs(starts[0] - starts[1]) < _extent(first) and second.numel() > 0


def _extent(tensor: Tensor) -> int:
    """Bytes from the first to the last element; of none, 0."""
    if tensor.is_contiguous():
        return tensor.nbytes
    if tensor.numel() == 0:
        return 0
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return (last + 1) * tensor.itemsize


def require_bytes(name: str, tensor: Tensor, shape: tuple[int, ...]) -> None:
    if not isinstance(tensor, Tensor) or tensor.dtype != torch.uint8:
        raise TypeError(
            f"{name} must be a uint8 tensor, got {getattr(tensor, 'dtype', type(tensor).__name__)}"
        )
    if tensor.shape != shape:
        raise ValueError(f"{name} must have shape {shape}, got {tuple(tensor.shape)}")


@dataclasses.dataclass(frozen=True, slots=True)
class SparseLayout:
    """Note [Sparse payload] of csrc/sparse_math.h."""

    numel: int
    count: int
    """Entries: elements that are kept, at most."""
    low_bits: int

    @property
    def high_bits(self) -> int:
        return self.count + ((self.numel - 1) >> self.low_bits)

    @property
    def high_bytes(self) -> int:
        return -(-self.high_bits // 8)

    @property
    def entry_bits(self) -> int:
        return self.low_bits + 4

    @property
    def payload_bytes(self) -> int:
        return 8 + self.high_bytes + -(-self.count * self.entry_bits // 8) if self.numel else 0


def sparse_layout(numel: int, elements_per_bit: int) -> SparseLayout:
    """As many entries as numel / elements_per_bit bits hold, but at least one."""
    return _sparse_layout(operator.index(numel), operator.index(elements_per_bit))


@functools.lru_cache(maxsize=1024)
def _sparse_layout(numel: int, elements_per_bit: int) -> SparseLayout:
    if numel == 0:
        return SparseLayout(0, 0, 0)
    budget = numel // (8 * elements_per_bit)
    low, high = 1, max(numel // 2, 1)
    while low < high:
        middle = low + (high - low + 1) // 2
        if _sparse_layout_of(numel, middle).payload_bytes <= budget:
            low = middle
        else:
            high = middle - 1
    return _sparse_layout_of(numel, low)


def _sparse_layout_of(numel: int, count: int) -> SparseLayout:
    return SparseLayout(numel, count, (numel // count).bit_length() - 1)


def require_sparse(numel: int, elements_per_bit: int) -> None:
    for name, value in (("elements_per_bit", elements_per_bit), ("numel", numel)):
        if not hasattr(value, "__index__"):
            raise TypeError(f"{name} must be an integer, got {value!r}")
    if not 1 <= elements_per_bit <= 64:
        raise ValueError(f"elements_per_bit must be in 1..64, got {elements_per_bit}")
    if not 0 <= numel < 2**40:
        raise ValueError(f"numel must be in 0..2^40, got {numel}")
