"""What the package says of wrong arguments, memory that is written and read at once included."""

from typing import Any

import numpy as np
import pytest
import torch
from example_payload import IDS, PAYLOAD, X

from mqgrad import cuda_ext


@pytest.mark.parametrize(
    ("error", "message", "x", "overrides"),
    [
        (TypeError, "torch.int64", X.long(), {}),
        (TypeError, "torch.complex64", X.to(torch.complex64), {}),
        (TypeError, "got list", [1.0, 2.0], {}),
        (ValueError, r"\(8, 5\)", X.view(8, 5), {}),
        (ValueError, "bits must be in 1..8, got 0", X, {"bits": 0}),
        (ValueError, "got 9", X, {"bits": 9}),
        (TypeError, "bits must be an integer, got 2.5", X, {"bits": 2.5}),
        (ValueError, "bucket_size must be at least 1 and below .*, got 0", X, {"bucket_size": 0}),
        (ValueError, "seed must fit 64 bits", X, {"seed": 2**64}),
        (ValueError, r"bucket_ids must have shape \(3,\), got \(2,\)", X, {"bucket_ids": IDS[:2]}),
        (TypeError, "bucket_ids must be int64", X, {"bucket_ids": IDS.int()}),
        (ValueError, "bucket_ids is on meta, the other tensors on cpu", X, {"bucket_ids": IDS.to("meta")}),
    ],
)
def test_encode_refuses(error: type[Exception], message: str, x: Any, overrides: dict[str, Any]) -> None:
    arguments = {"bits": 3, "bucket_size": 16, "stochastic": True, "seed": 0} | overrides
    with pytest.raises(error, match=message):
        cuda_ext.encode(x, **arguments)


def test_seeds_may_be_numpys() -> None:
    seed = 2**63 + 5
    codes = [cuda_ext.encode(X, 3, 16, True, number) for number in (seed, np.uint64(seed))]
    assert torch.equal(*codes)


@pytest.mark.parametrize(
    ("error", "message", "tensor"),
    [
        (TypeError, "must be float32, got torch.float64", torch.zeros(40, dtype=torch.float64)),
        (ValueError, r"must have shape \(40,\), got \(39,\)", torch.zeros(39)),
        (ValueError, "must be contiguous", torch.zeros(80)[::2]),
    ],
)
def test_a_residual_must_fit(error: type[Exception], message: str, tensor: torch.Tensor) -> None:
    with pytest.raises(error, match=f"residual .*{message}"):
        cuda_ext.encode(X, 3, 16, False, 0, residual=tensor)


def test_other_wrong_arguments() -> None:
    with pytest.raises(ValueError, match="alpha and beta must be finite, got nan"):
        cuda_ext.encode(X, 3, 16, False, 0, residual=torch.zeros(40), alpha=float("nan"))
    with pytest.raises(TypeError, match="accumulator must be float32"):
        cuda_ext.decode_add_(torch.zeros(40, dtype=torch.float16), PAYLOAD, 3, 16)
    with pytest.raises(ValueError, match="numel must not be negative, got -1"):
        cuda_ext.payload_bytes(-1, 3, 16)
    with pytest.raises(ValueError, match="got -8 and 5"):
        cuda_ext.decode_minmax(PAYLOAD, -8, 5, 3)


@pytest.mark.parametrize(
    ("error", "message", "out"),
    [
        (TypeError, r"out must be a uint8 tensor, got torch\.float32", torch.zeros(len(PAYLOAD))),
        (ValueError, "out must have shape", torch.zeros(3, dtype=torch.uint8)),
        (ValueError, "out is written in place", torch.zeros(2 * len(PAYLOAD), dtype=torch.uint8)[::2]),
    ],
)
def test_an_output_must_fit(error: type[Exception], message: str, out: torch.Tensor) -> None:
    with pytest.raises(error, match=message):
        cuda_ext.encode(X, 3, 16, False, 0, out=out)
    with pytest.raises(error, match=message):
        cuda_ext.encode(X, 3, 16, False, 0, residual=torch.zeros(40), out=out)
    with pytest.raises(TypeError, match=r"out must be float32, got torch\.uint8"):
        cuda_ext.decode_into(torch.zeros(40, dtype=torch.uint8), PAYLOAD, 3, 16)


FLOATS = torch.zeros(400)
BYTES = FLOATS.view(torch.uint8)
FIRST, NEXT, SHIFTED = FLOATS[:40], FLOATS[40:80], FLOATS[39:79]
ROTATED, SPARSE = cuda_ext.rotated_bytes(40, 2, 16), cuda_ext.sparse_bytes(40, 2)


@pytest.mark.parametrize(
    ("op", "arguments", "written", "message"),
    [
        ("encode", (FIRST, 3, 16, False, 0), {"out": BYTES[159:186]}, "out .* with x"),
        ("encode", (FIRST, 3, 16, False, 0), {"residual": SHIFTED}, "residual .* with x"),
        (
            "encode",
            (FIRST, 3, 16, False, 0),
            {"residual": NEXT, "out": BYTES[319:346]},
            "out .* with residual",
        ),
        ("decode_into", (FIRST, BYTES[:27], 3, 16), {}, "out .* with payload"),
        ("decode_add_", (FIRST, BYTES[159:186], 3, 16), {}, "accumulator .* with payload"),
        ("encode_rotated", (FIRST, 2, 16, False, 0), {"residual": FIRST}, "residual .* with x"),
        ("decode_rotated_into", (FIRST, BYTES[:ROTATED], 2, 16), {}, "out .* with payload"),
        ("decode_rotated_add_", (FIRST, BYTES[:ROTATED], 2, 16), {}, "accumulator .* with payload"),
        ("sparse_encode", (SHIFTED, 2), {"residual": FIRST}, "residual .* with x"),
        ("sparse_encode", (FIRST, 2), {"out": BYTES[:SPARSE]}, "out .* with x"),
        ("sparse_encode", (NEXT, 2), {"residual": FIRST, "out": BYTES[:SPARSE]}, "out .* with residual"),
        ("sparse_decode_into", (FIRST, BYTES[:SPARSE], 2), {}, "out .* with payload"),
        ("sparse_decode_add_", (FIRST, BYTES[:SPARSE], 2), {}, "accumulator .* with payload"),
        ("encode_bfloat16", (FIRST,), {"residual": FIRST}, "residual .* with x"),
        ("decode_bfloat16_into", (FIRST, BYTES[:80]), {}, "out .* with payload"),
        ("decode_bfloat16_add_", (FIRST, BYTES[80:160]), {}, "accumulator .* with payload"),
    ],
)
def test_what_is_written_shares_no_memory_with_what_is_read(
    op: str, arguments: tuple[Any, ...], written: dict[str, torch.Tensor], message: str
) -> None:
    with pytest.raises(ValueError, match=f"{message}$"):
        getattr(cuda_ext, op)(*arguments, **written)


def test_a_residual_shares_no_memory_with_payloads() -> None:
    for op, size, arguments in (
        (cuda_ext.reduce_encode, 27, (40, 3, 16, False, 0)),
        (cuda_ext.reduce_encode_rotated, ROTATED, (40, 2, 16, False, 0)),
        (cuda_ext.reduce_encode_bfloat16, 80, (40,)),
    ):
        payloads = BYTES[1 : 1 + 2 * size].view(2, size)
        with pytest.raises(ValueError, match=r"residual .* with payloads$"):
            op(payloads, *arguments, residual=FIRST)


def test_a_mean_shares_no_memory_with_payloads() -> None:
    for op, size, arguments in (
        (cuda_ext.decode_mean_into, 27, (3, 16)),
        (cuda_ext.decode_rotated_mean_into, ROTATED, (2, 16)),
        (cuda_ext.decode_bfloat16_mean_into, 80, ()),
        (cuda_ext.sparse_decode_mean_into, SPARSE, (2,)),
    ):
        payloads = BYTES[1 : 1 + 2 * size].view(2, size)
        with pytest.raises(ValueError, match=r"out .* with payload$"):
            op(FIRST, payloads, *arguments)


def test_neighbours_in_memory_are_no_overlap() -> None:
    floats = torch.randn(120)
    apart = cuda_ext.encode(floats[:40].clone(), 3, 16, False, 0, residual=floats[40:80].clone())
    out = floats.view(torch.uint8)[320:347]
    cuda_ext.encode(floats[:40], 3, 16, False, 0, residual=floats[40:80], out=out)
    assert torch.equal(out, apart)
