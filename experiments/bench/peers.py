"""Other people's codecs, measured beside ours where they are installed: none of them is a dependency.

    pip install --no-deps pypiquant cffi pycparser bitsandbytes  # --no-deps: keep the torch you have

Each is used at its best: output buffers are allocated beforehand where its interface takes them, and what is decoded
before it is added is decoded in pieces that stay in the cache.
"""

import importlib
import textwrap
from collections.abc import Callable
from typing import Any

import torch

from .coders import Coder, Skipped

_BLOCK = 512  # elements that share a scale, as ours
_PIECE = 2**18  # elements, 1 MiB of float32: decoded and then added before the next
_PIQUANT_CALLS = 8
_PIQUANT_NOTE = (
    "pi-quant: one scale per tensor (its interface takes one a call), ours and bitsandbytes one per 512 elements; "
    "stochastic: one random number a call, not an element, so that its error differs from call to call: a mean of "
    f"{_PIQUANT_CALLS} calls."
)


def find_peers(numel: int, threads: int) -> tuple[list[Coder], list[Skipped]]:
    """The peers that can be measured here, and why the others cannot."""
    coders, skipped = [bfloat16(numel)], []
    for name, build in _OPTIONAL.items():
        try:
            coders += build(numel, threads)
        except Exception as error:  # whatever a foreign package does when it does not fit this machine
            skipped.append(Skipped(name, textwrap.shorten(f"{type(error).__name__}: {error}", 100)))
    return coders, skipped


def bfloat16(numel: int) -> Coder:
    """torch's own cast."""
    half, floats = torch.empty(numel, dtype=torch.bfloat16), torch.empty(_PIECE)

    def decode_add(out: torch.Tensor, payload: torch.Tensor) -> None:
        for part, sent in zip(out.split(_PIECE), payload.split(_PIECE), strict=True):
            part.add_(floats[: len(sent)].copy_(sent))

    return Coder("torch bfloat16", 16, lambda x: half.copy_(x), decode_add)


def piquant(numel: int, threads: int) -> list[Coder]:
    """pi-quant: one scale a tensor, found in a pass of its own; nearest and stochastic rounding.

    Version 4.1.0 rounds all elements of a call by one random number: of 2^20 elements of equal fraction, all went up
    or all went down, with one thread and with two. Over many calls it is unbiased; within one its errors add up.

    Raises:
        ImportError: it is not installed.
    """
    package = importlib.import_module("piquant")
    context = package.Context(threads)
    return [
        _piquant_coder(package, context, numel, bits, rounding)
        for bits in (2, 4, 8)
        for rounding in ("nearest", "stochastic")
    ]


def _piquant_coder(package: Any, context: Any, numel: int, bits: int, rounding: str) -> Coder:
    floats, codes = package.DataType.F32, package.DataType[f"UINT{bits}"]
    mode = package.RoundMode[rounding.upper()]
    packed = torch.empty(-(-numel * bits // 8), dtype=torch.uint8)

    def encode(x: torch.Tensor) -> tuple[float, int]:
        grid = context.compute_quant_params_ptr_float32(x.data_ptr(), codes, numel)
        context.quantize_ptr(x.data_ptr(), floats, packed.data_ptr(), codes, numel, *grid, mode)
        return grid

    def decode_add(out: torch.Tensor, grid: tuple[float, int]) -> None:
        add = package.ReduceOp.ADD
        context.dequantize_ptr(packed.data_ptr(), codes, out.data_ptr(), floats, numel, *grid, add)

    calls = _PIQUANT_CALLS if rounding == "stochastic" else 1
    return Coder(f"pi-quant {rounding}", bits, encode, decode_add, error_calls=calls, note=_PIQUANT_NOTE)


def bitsandbytes(numel: int, threads: int) -> list[Coder]:
    """bitsandbytes' dynamic 8-bit code in blocks; it follows torch's number of threads.

    Version 0.50.2 gains nothing by output buffers on the CPU: encoding makes its own and copies it to ``out``, and
    decoding to ``out`` has no kernel. Pieces are allocated where the last ones were freed, and not on new pages.

    Raises:
        ImportError: it is not installed.
    """
    functional = importlib.import_module("bitsandbytes.functional")

    def encode(x: torch.Tensor) -> list[Any]:
        return [functional.quantize_blockwise(part, blocksize=_BLOCK) for part in x.split(_PIECE)]

    def decode_add(out: torch.Tensor, payload: list[Any]) -> None:
        for part, sent in zip(out.split(_PIECE), payload, strict=True):
            part.add_(functional.dequantize_blockwise(*sent))

    encode(torch.zeros(numel))  # fails here if it has no kernels for the CPU
    return [Coder("bitsandbytes", 8, encode, decode_add)]


_OPTIONAL: dict[str, Callable[[int, int], list[Coder]]] = {
    "pi-quant": piquant,
    "bitsandbytes": bitsandbytes,
}
