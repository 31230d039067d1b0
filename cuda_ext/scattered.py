"""Vectors that lie in several tensors, as the gradients of a DDP bucket do."""

import bisect
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from mqgrad.cuda_ext import checks, library


class Scattered:
    """A vector [length] that lies in several tensors, with zeros between and behind them.

    The CPU's ops read and write the tensors where they are, and raise ``RuntimeError`` if they share memory with what
    is written or read beside them; elsewhere torch gathers them, or copies to them.

    Args:
        tensors: at least one, 1-D and contiguous, of a floating type, on one device, as they lie in the vector.
        offsets: where each begins. Those of a part of a vector may lie before it or behind it, in part or as a whole.
        length: elements of the vector.

    Raises:
        TypeError: a tensor is of no supported type.
        ValueError: there are none; one is not 1-D or not contiguous, or they overlap in the vector.
    """

    __slots__ = ("length", "offsets", "tensors")

    def __init__(self, tensors: list[Tensor], offsets: list[int], length: int) -> None:
        _require_tensors(tensors, offsets)
        self.tensors, self.offsets, self.length = tensors, offsets, length

    def numel(self) -> int:
        return self.length

    @property
    def device(self) -> torch.device:
        return self.tensors[0].device

    def part(self, part: slice) -> "Scattered":
        """Elements from ``part.start`` to ``part.stop``, as another vector in the same memory."""
        first = max(bisect.bisect_right(self.offsets, part.start) - 1, 0)
        last = max(bisect.bisect_left(self.offsets, part.stop), first + 1)
        cut = Scattered.__new__(Scattered)  # what is checked of the whole holds for its parts
        cut.tensors, cut.length = self.tensors[first:last], part.stop - part.start
        cut.offsets = [offset - part.start for offset in self.offsets[first:last]]
        return cut

    def gathered(self) -> Tensor:
        """A copy in one tensor, float32 [length]."""
        vector = torch.zeros(self.length, dtype=torch.float32, device=self.device)
        parts, pieces = self._pieces(vector)
        if parts:
            torch._foreach_copy_(parts, pieces)
        return vector

    def continued(self, bucket_size: int) -> Tensor:
        """A copy in which tensors that end within a bucket go on with their elements in it, over again.

        For codes that zeros behind the elements would change. The tensors begin where buckets do.
        """
        vector = self.gathered()
        for tensor, offset in zip(self.tensors, self.offsets, strict=True):
            end, used = offset + tensor.numel(), tensor.numel() % bucket_size
            if used and 0 < end <= len(vector):
                padding = vector[end : end + bucket_size - used]
                copies = -(-len(padding) // used)
                padding.copy_(vector[end - used : end].repeat(copies)[: len(padding)])
        return vector

    def copy_(self, vector: Tensor) -> None:
        """Overwrite with a float32 [length]; what it has between and behind the tensors is dropped."""
        parts, pieces = self._pieces(vector)
        if parts:
            torch._foreach_copy_(pieces, parts)

    def _pieces(self, vector: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        """Parts of a vector [length], and the memory of the same elements."""
        parts, pieces = [], []
        for tensor, offset in zip(self.tensors, self.offsets, strict=True):
            start, stop = max(offset, 0), min(offset + tensor.numel(), self.length)
            if start < stop:
                parts.append(vector[start:stop])
                pieces.append(tensor[start - offset : stop - offset])
        return parts, pieces


Vector = Tensor | Scattered


def _require_tensors(tensors: list[Tensor], offsets: list[int]) -> None:
    if not tensors:
        raise ValueError("a scattered vector needs at least one tensor")
    end: float = -math.inf
    for tensor, offset in zip(tensors, offsets, strict=True):
        checks.require_input(tensor, 1)
        if not tensor.is_contiguous():
            raise ValueError("the tensors of a scattered vector are used in place and must be contiguous")
        if offset < end:
            raise ValueError(
                f"a scattered vector has a tensor that ends at {end} before one that begins at {offset}"
            )
        end = offset + tensor.numel()


def readable(x: Vector) -> Vector:
    """A vector as the ops of its device take it.

    Raises:
        TypeError: it is of no supported type.
        ValueError: it is not 1-D.
    """
    if isinstance(x, Scattered):
        return x if library.has_cpu_ops(x.device) else x.gathered()
    checks.require_input(x, 1)
    return x.contiguous()


def is_writable(out: Vector, payload: Tensor) -> bool:
    """Whether the ops write to a vector where it is, while they read a payload.

    Raises:
        TypeError: a tensor that is not float32.
        ValueError: one that is not contiguous, is on another device or shares memory with the payload.
    """
    if isinstance(out, Scattered):
        return library.has_cpu_ops(out.device)
    checks.require_floats("out", out, out.numel(), payload.device)
    checks.require_apart("out", out, payload=payload)
    return True


def whole(x: Vector) -> Tensor:
    """In one tensor."""
    return x.gathered() if isinstance(x, Scattered) else x


def pieces(x: Vector) -> tuple[list[Tensor], list[int]]:
    """The tensors and their offsets, as the compiled ops take them."""
    return (x.tensors, x.offsets) if isinstance(x, Scattered) else ([x], [0])


def overwrite(out: Vector, op: Callable[..., None], *arguments: Any) -> None:
    """Call ``op(tensors, offsets, *arguments)``, which writes to a vector where it is, and tell autograd so.

    Raises:
        RuntimeError: a gradient is to flow through what is written.
    """
    tensors, offsets = pieces(out)
    library.note_written(*tensors)
    op(tensors, offsets, *arguments)


def copy_to(out: Vector, vector: Tensor) -> None:
    """Overwrite a vector with a float32 [length], and tell autograd as :func:`overwrite` does."""
    library.note_written(*pieces(out)[0])
    out.copy_(vector)


def in_one(x: Vector) -> Tensor | None:
    """A vector that is one tensor, for :func:`.checks.require_apart`: the compiled ops look at those of others."""
    return x if isinstance(x, Tensor) else None
