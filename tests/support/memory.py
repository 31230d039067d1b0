"""Memory for tests of very long tensors, and little of it."""

import contextlib
import ctypes
import mmap
import os
from collections.abc import Iterator

import torch
from torch import Tensor

BLOCK = 2**24  # bytes
_MAP_FIXED, _PROT_NONE = 0x10, 0  # on Linux; the module mmap lacks them

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]


@contextlib.contextmanager
def repeating_zeros(numel: int, dtype: torch.dtype) -> Iterator[Tensor]:
    """A vector of many GiB in 64 MiB: its blocks of 16 MiB, but for the first and the last two, are one and the same.

    What is written to one of these is in all of them. A process's resident size counts each of them all the same.
    Needs Linux; the vector ends with the context.
    """
    count = -(-numel * dtype.itemsize // BLOCK)
    start = _map(None, count * BLOCK, _PROT_NONE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
    file = os.memfd_create("blocks")
    os.ftruncate(file, 4 * BLOCK)
    for i in range(count):
        block = 0 if i == 0 else 1 if i < count - 2 else 4 + i - count
        access, kind = mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED | _MAP_FIXED
        _map(start + i * BLOCK, BLOCK, access, kind, file, block * BLOCK)
    os.close(file)
    yield torch.frombuffer((ctypes.c_char * (count * BLOCK)).from_address(start), dtype=dtype, count=numel)
    _libc.munmap(start, count * BLOCK)  # not after an error: pytest may print the vector


def _map(address: int | None, length: int, access: int, kind: int, file: int, offset: int) -> int:
    mapped = _libc.mmap(address, length, access, kind, file, offset)
    if mapped is None or mapped == ctypes.c_void_p(-1).value:
        raise OSError(ctypes.get_errno(), "mmap")
    return mapped
