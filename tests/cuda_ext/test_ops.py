"""The ops as torch sees them, wrong arguments, and the package without its compiled part."""

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from mqgrad import cuda_ext
from mqgrad.cuda_ext import reference

X = torch.linspace(-1, 1, 40)
PAYLOAD = reference.encode(X, 3, 16, False, 0)
IDS = torch.tensor([7, 8, 9])

needs_extension = pytest.mark.skipif(
    cuda_ext.IMPLEMENTATION == "reference", reason="the extension was not built"
)

CALLS: dict[str, tuple[Any, ...]] = {
    "encode": (X, 3, 16, True, 1, IDS),
    "encode_with_feedback": (X, torch.zeros(40), 3, 16, False, 1, 1.0, 0.5, None),
    "encode_into": (torch.empty_like(PAYLOAD), X, torch.zeros(40), 3, 16, True, 1, 1.0, 0.5, IDS),
    "reduce_encode": (PAYLOAD.repeat(3, 1), torch.zeros(40), 40, 3, 16, True, 1, 1.0, 0.5, IDS),
    "decode": (PAYLOAD, 40, 3, 16),
    "decode_into": (torch.empty(40), PAYLOAD, 3, 16),
    "decode_add_": (torch.ones(40), PAYLOAD, 3, 16),
    "encode_minmax": (X.view(8, 5), 3),
    "decode_minmax": (reference.encode_minmax(X.view(8, 5), 3), 8, 5, 3),
}


@needs_extension
@pytest.mark.parametrize("name", CALLS)
def test_opcheck(name: str) -> None:
    torch.library.opcheck(getattr(torch.ops.mqgrad, name).default, CALLS[name])


@needs_extension
def test_compiled_code_calls_the_ops() -> None:
    def step(x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        payload = cuda_ext.encode_with_feedback(x, residual, 3, 16, True, 1, 1.0, 1.0)
        return 2 * cuda_ext.decode(payload, x.numel(), 3, 16)

    ours, expected = torch.zeros(40), torch.zeros(40)
    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(X, ours), step(X, expected))
    assert torch.equal(ours, expected)


LONGS = torch.zeros(20, dtype=torch.int64)


@needs_extension
@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("decode", (PAYLOAD[:-1], 40, 3, 16)),
        ("decode_add_", (torch.zeros(41), PAYLOAD, 3, 16)),
        ("decode_into", (torch.zeros(41), PAYLOAD, 3, 16)),
        ("encode_into", (PAYLOAD[1:].clone(), X, None, 3, 16, False, 0, 0.0, 0.0)),
        ("encode_into", (PAYLOAD.clone(), X, torch.zeros(39), 3, 16, False, 0, 1.0, 1.0)),
        ("reduce_encode", (PAYLOAD, None, 40, 3, 16, False, 0, 0.0, 0.0)),
        ("reduce_encode", (PAYLOAD[1:].repeat(2, 1), None, 40, 3, 16, False, 0, 0.0, 0.0)),
        ("reduce_encode", (PAYLOAD.new_empty(0, len(PAYLOAD)), None, 40, 3, 16, False, 0, 0.0, 0.0)),
        ("reduce_encode", (PAYLOAD.repeat(2, 1), torch.zeros(39), 40, 3, 16, False, 0, 0.0, 0.0)),
        ("decode_minmax", (PAYLOAD, 8, 5, 3)),
        # Modulo 2^64, the payload of so many elements has 4 bytes.
        ("reduce_encode", (PAYLOAD[:4].repeat(1, 1), None, (2**64 + 4) // 5, 8, 1, False, 0, 0.0, 0.0)),
        ("decode", (PAYLOAD[:4], (2**64 + 4) // 5, 8, 1)),
        ("encode", (X, 9, 16, False, 0)),
        ("encode", (X, 3, 0, False, 0)),
        ("encode", (X[::2], 3, 16, False, 0)),
        ("encode", (X.int(), 3, 16, False, 0)),
        ("encode", (X, 3, 16, True, 0, IDS[:2])),
        ("encode_with_feedback", (X, torch.zeros(39), 3, 16, False, 0, 1.0, 1.0)),
        ("encode_minmax", (X, 3)),
        ("encode_with_feedback", (X, X, 3, 16, False, 0, 1.0, 1.0)),
        ("encode_into", (X.view(torch.uint8)[:27], X, None, 3, 16, False, 0, 0.0, 0.0)),
        ("decode_add_", (X, X.view(torch.uint8)[133:], 3, 16)),
        ("encode_into", (LONGS.view(torch.uint8)[:27], X, None, 3, 16, True, 0, 0.0, 0.0, LONGS[3:6])),
        ("encode_with_feedback", (X, LONGS.view(torch.float32), 3, 16, True, 0, 1.0, 1.0, LONGS[17:])),
        (
            "reduce_encode",
            (PAYLOAD.repeat(2, 1), LONGS.view(torch.float32), 40, 3, 16, True, 0, 1.0, 1.0, LONGS[:3]),
        ),
    ],
)
def test_the_raw_ops_guard_their_memory(name: str, arguments: tuple[Any, ...]) -> None:
    with pytest.raises(RuntimeError, match="mqgrad: "):
        getattr(torch.ops.mqgrad, name)(*arguments)


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
        (ValueError, "bucket_size must be at least 1, got 0", X, {"bucket_size": 0}),
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
        cuda_ext.encode_with_feedback(X, tensor, 3, 16, False, 0, 1.0, 1.0)


def test_other_wrong_arguments() -> None:
    with pytest.raises(ValueError, match="alpha and beta must be finite, got nan"):
        cuda_ext.encode_with_feedback(X, torch.zeros(40), 3, 16, False, 0, float("nan"), 1.0)
    with pytest.raises(TypeError, match=r"payload must be a uint8 tensor, got torch\.int8"):
        cuda_ext.decode(PAYLOAD.to(torch.int8), 40, 3, 16)
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
        cuda_ext.encode_with_feedback(X, torch.zeros(40), 3, 16, False, 0, 1.0, 1.0, out=out)
    with pytest.raises(TypeError, match=r"out must be float32, got torch\.uint8"):
        cuda_ext.decode(PAYLOAD, 40, 3, 16, out=PAYLOAD)


FLOATS = torch.zeros(400)
BYTES = FLOATS.view(torch.uint8)
FIRST, NEXT, SHIFTED = FLOATS[:40], FLOATS[40:80], FLOATS[39:79]
ROTATED, SPARSE = cuda_ext.rotated_bytes(40, 2, 16), cuda_ext.sparse_bytes(40, 2)


@pytest.mark.parametrize(
    ("op", "arguments", "out", "message"),
    [
        ("encode", (FIRST, 3, 16, False, 0), BYTES[159:186], "out .* with x"),
        ("encode_with_feedback", (FIRST, SHIFTED, 3, 16, False, 0, 1.0, 1.0), None, "residual .* with x"),
        (
            "encode_with_feedback",
            (FIRST, NEXT, 3, 16, False, 0, 1.0, 1.0),
            BYTES[319:346],
            "out .* with residual",
        ),
        ("decode", (BYTES[:27], 40, 3, 16), FIRST, "out .* with payload"),
        ("decode_add_", (FIRST, BYTES[159:186], 3, 16), None, "accumulator .* with payload"),
        (
            "encode_rotated_with_feedback",
            (FIRST, FIRST, 2, 16, False, 0, 1.0, 1.0),
            None,
            "residual .* with x",
        ),
        ("decode_rotated", (BYTES[:ROTATED], 40, 2, 16), FIRST, "out .* with payload"),
        ("decode_rotated_add_", (FIRST, BYTES[:ROTATED], 2, 16), None, "accumulator .* with payload"),
        ("sparse_encode_with_feedback", (SHIFTED, FIRST, 2), None, "residual .* with x"),
        ("sparse_decode_add_", (FIRST, BYTES[:SPARSE], 2), None, "accumulator .* with payload"),
        ("encode_bfloat16_with_feedback", (FIRST, FIRST, 1.0, 1.0), None, "residual .* with x"),
        ("decode_bfloat16", (BYTES[:80], 40), FIRST, "out .* with payload"),
        ("decode_bfloat16_add_", (FIRST, BYTES[80:160]), None, "accumulator .* with payload"),
    ],
)
def test_what_is_written_shares_no_memory_with_what_is_read(
    op: str, arguments: tuple[Any, ...], out: torch.Tensor | None, message: str
) -> None:
    with pytest.raises(ValueError, match=f"{message}$"):
        getattr(cuda_ext, op)(*arguments, **({} if out is None else {"out": out}))


def test_a_residual_shares_no_memory_with_payloads() -> None:
    for op, size, arguments in (
        (cuda_ext.reduce_encode, 27, (40, 3, 16, False, 0)),
        (cuda_ext.reduce_encode_rotated, ROTATED, (40, 2, 16, False, 0)),
        (cuda_ext.reduce_encode_bfloat16, 80, (40,)),
    ):
        payloads = BYTES[1 : 1 + 2 * size].view(2, size)
        with pytest.raises(ValueError, match=r"residual .* with payloads$"):
            op(payloads, *arguments, residual=FIRST)


def test_neighbours_in_memory_are_no_overlap() -> None:
    floats = torch.randn(120)
    apart = cuda_ext.encode_with_feedback(
        floats[:40].clone(), floats[40:80].clone(), 3, 16, False, 0, 1.0, 1.0
    )
    out = floats.view(torch.uint8)[320:347]
    cuda_ext.encode_with_feedback(floats[:40], floats[40:80], 3, 16, False, 0, 1.0, 1.0, out=out)
    assert torch.equal(out, apart)


@pytest.mark.parametrize("payloads", [PAYLOAD, PAYLOAD[:-1].repeat(2, 1), PAYLOAD.new_empty(0, len(PAYLOAD))])
def test_payloads_to_reduce_must_fit(payloads: torch.Tensor) -> None:
    with pytest.raises(ValueError, match=rf"payloads must have shape \(\d+, {len(PAYLOAD)}\)"):
        cuda_ext.reduce_encode(payloads, 40, 3, 16, False, 0)


def test_seeds_of_64_bits_wrap_to_their_signed_twin() -> None:
    unsigned = cuda_ext.encode(X, 3, 16, True, 2**64 - 1)
    assert torch.equal(unsigned, cuda_ext.encode(X, 3, 16, True, -1))
    assert not torch.equal(unsigned, cuda_ext.encode(X, 3, 16, True, 2**63 - 1))


def test_inputs_need_not_be_contiguous() -> None:
    x = torch.randn(7, 90)
    assert torch.equal(
        cuda_ext.encode(x[0, ::2], 4, 16, True, 0), cuda_ext.encode(x[0, ::2].clone(), 4, 16, True, 0)
    )
    assert torch.equal(cuda_ext.encode_minmax(x.T, 4), cuda_ext.encode_minmax(x.T.contiguous(), 4))
    spread = torch.zeros(2 * len(PAYLOAD), dtype=torch.uint8)[::2].copy_(PAYLOAD)
    assert torch.equal(cuda_ext.decode(spread, 40, 3, 16), cuda_ext.decode(PAYLOAD, 40, 3, 16))


WITHOUT_EXTENSION = """
import sys
sys.path.insert(0, sys.argv[1])
import torch
from mqgrad import cuda_ext
assert cuda_ext.__file__.startswith(sys.argv[1]), cuda_ext.__file__
assert cuda_ext.IMPLEMENTATION == "reference"
print("imported", file=sys.stderr)
for _ in range(3):
    payload = cuda_ext.encode(torch.linspace(-1, 1, 40), 3, 16, False, 0)
    cuda_ext.decode(payload, 40, 3, 16)
print(payload.tolist())
"""


@pytest.mark.parametrize("library", ["missing", "broken"])
def test_without_the_library_the_reference_runs_and_says_so_once(library: str, tmp_path: Path) -> None:
    package = tmp_path / "mqgrad" / "cuda_ext"
    package.mkdir(parents=True)
    (tmp_path / "mqgrad" / "__init__.py").touch()
    for source in Path(cuda_ext.__file__).parent.glob("*.py"):
        shutil.copy(source, package)
    if library == "broken":
        (package / "_C.abi3.so").write_bytes(b"not a library")
    run = subprocess.run(
        [sys.executable, "-W", "always", "-c", WITHOUT_EXTENSION, str(tmp_path)],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    before, after = run.stderr.split("imported")
    assert "RuntimeWarning" not in before  # importing is not using
    assert after.count("RuntimeWarning: mqgrad runs on its slow torch reference") == 1
    assert run.stdout.strip() == str(PAYLOAD.tolist())
