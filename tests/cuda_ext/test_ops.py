"""The ops as torch sees them, and the package without its compiled part."""

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from built import needs_extension
from example_payload import IDS, PAYLOAD, X

from mqgrad import cuda_ext
from mqgrad.cuda_ext import library, reference_minmax

OUT = torch.empty_like(PAYLOAD)
PARTS, LONG = torch.empty(3, cuda_ext.payload_bytes(8, 3, 16), dtype=torch.uint8), torch.zeros(144)
ROTATED_PARTS = torch.empty(3, cuda_ext.rotated_bytes(16, 2, 64), dtype=torch.uint8)
CALLS: dict[str, tuple[Any, ...]] = {
    "encode_into": (torch.empty_like(PAYLOAD), [X], [0], torch.zeros(40), 40, 3, 16, True, 1, 1.0, 0.5, IDS),
    "reduce_encode_into": (OUT, PAYLOAD.repeat(3, 1), torch.zeros(40), 40, 3, 16, True, 1, 1.0, 0.5, IDS),
    "decode": (PAYLOAD, 40, 3, 16),
    "decode_into": ([torch.empty(40)], [0], PAYLOAD, 40, 3, 16),
    "decode_mean_into": ([torch.empty(40)], [0], PAYLOAD.repeat(3, 1), 40, 3, 16),
    "decode_add_": (torch.ones(40), PAYLOAD, 3, 16),
    "encode_parts_into": (PARTS, [X], [0], torch.zeros(40), 8, 16, 3, 16, True, 1, 1.0, 0.5, IDS),
    "decode_parts_into": ([torch.empty(40)], [0], torch.zeros_like(PARTS), 8, 16, 3, 16),
    "encode_rotated_parts_into": (
        *(ROTATED_PARTS, [LONG], [0], torch.zeros(144)),
        *(16, 64, 2, 64, True, 1, 1.0, 0.5),
    ),
    "decode_rotated_parts_into": (
        *([torch.empty(144)], [0], torch.zeros_like(ROTATED_PARTS)),
        *(16, 64, 2, 64),
    ),
    "write_checksums_": (torch.zeros(60, dtype=torch.uint8), [20, 40], [12, 5], 3),
    "wrong_checksums": (torch.zeros(60, dtype=torch.uint8), [20, 40], [12, 5], 3),
    "encode_minmax": (X.view(8, 5), 3),
    "decode_minmax": (reference_minmax.encode_minmax(X.view(8, 5), 3), 8, 5, 3),
}


@needs_extension
@pytest.mark.parametrize("name", CALLS)
def test_opcheck(name: str) -> None:
    torch.library.opcheck(getattr(torch.ops.mqgrad, name).default, CALLS[name])


@needs_extension
def test_compiled_code_calls_the_ops() -> None:
    def step(x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        payload = cuda_ext.encode(x, 3, 16, True, 1, residual=residual)
        return 2 * cuda_ext.decode(payload, x.numel(), 3, 16)

    ours, expected = torch.zeros(40), torch.zeros(40)
    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(X, ours), step(X, expected))
    assert torch.equal(ours, expected)


@needs_extension
def test_compiled_code_asks_once_what_a_gpu_can_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here the processor stands in for the GPU."""
    asked = library._is_compiled_for
    assert asked.__name__ in library.has_kernels.__code__.co_names
    monkeypatch.setattr(library, "has_kernels", lambda device: asked(device))
    test_compiled_code_calls_the_ops()


LONGS = torch.zeros(20, dtype=torch.int64)


@needs_extension
@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("decode", (PAYLOAD[:-1], 40, 3, 16)),
        ("decode_add_", (torch.zeros(41), PAYLOAD, 3, 16)),
        ("decode_into", ([torch.zeros(41)], [0], PAYLOAD, 41, 3, 16)),
        ("decode_mean_into", ([torch.zeros(41)], [0], PAYLOAD.repeat(2, 1), 41, 3, 16)),
        ("decode_mean_into", ([torch.zeros(40)], [0], PAYLOAD, 40, 3, 16)),
        ("decode_mean_into", ([torch.zeros(40)], [0], PAYLOAD.new_empty(0, len(PAYLOAD)), 40, 3, 16)),
        ("decode_mean_into", ([X], [0], X.view(torch.uint8)[:54].view(2, 27), 40, 3, 16)),
        ("encode_into", (PAYLOAD[1:].clone(), [X], [0], None, 40, 3, 16, False, 0, 0.0, 0.0)),
        ("encode_into", (PAYLOAD.clone(), [X], [0], torch.zeros(39), 40, 3, 16, False, 0, 1.0, 1.0)),
        ("reduce_encode_into", (OUT, PAYLOAD, None, 40, 3, 16, False, 0, 0.0, 0.0)),
        ("reduce_encode_into", (OUT, PAYLOAD[1:].repeat(2, 1), None, 40, 3, 16, False, 0, 0.0, 0.0)),
        (
            "reduce_encode_into",
            (OUT, PAYLOAD.new_empty(0, len(PAYLOAD)), None, 40, 3, 16, False, 0, 0.0, 0.0),
        ),
        ("reduce_encode_into", (OUT, PAYLOAD.repeat(2, 1), torch.zeros(39), 40, 3, 16, False, 0, 0.0, 0.0)),
        ("decode_minmax", (PAYLOAD, 8, 5, 3)),
        # Modulo 2^64, the payload of so many elements has 4 bytes.
        (
            "reduce_encode_into",
            (OUT, PAYLOAD[:4].repeat(1, 1), None, (2**64 + 4) // 5, 8, 1, False, 0, 0.0, 0.0),
        ),
        ("decode", (PAYLOAD[:4], (2**64 + 4) // 5, 8, 1)),
        ("decode_minmax", (PAYLOAD[:0], 2**32, 2**32, 3)),  # modulo 2^64, that is an empty matrix
        ("encode_into", (OUT, [X], [0], None, 40, 9, 16, False, 0, 0.0, 0.0)),
        ("encode_into", (OUT, [X], [0], None, 40, 3, 0, False, 0, 0.0, 0.0)),
        ("encode_into", (OUT, [X[::2]], [0], None, 40, 3, 16, False, 0, 0.0, 0.0)),
        ("encode_into", (OUT, [X.int()], [0], None, 40, 3, 16, False, 0, 0.0, 0.0)),
        ("encode_into", (OUT, [X], [0], None, 40, 3, 16, True, 0, 0.0, 0.0, IDS[:2])),
        ("encode_minmax", (X, 3)),
        ("encode_into", (OUT, [X], [0], X, 40, 3, 16, False, 0, 1.0, 1.0)),
        ("encode_into", (X.view(torch.uint8)[:27], [X], [0], None, 40, 3, 16, False, 0, 0.0, 0.0)),
        ("decode_add_", (X, X.view(torch.uint8)[133:], 3, 16)),
        (
            "encode_into",
            (LONGS.view(torch.uint8)[:27], [X], [0], None, 40, 3, 16, True, 0, 0.0, 0.0, LONGS[3:6]),
        ),
        (
            "encode_into",
            (OUT, [X], [0], LONGS.view(torch.float32), 40, 3, 16, True, 0, 1.0, 1.0, LONGS[17:]),
        ),
        (
            "reduce_encode_into",
            (OUT, PAYLOAD.repeat(2, 1), LONGS.view(torch.float32), 40, 3, 16, True, 0, 1.0, 1.0, LONGS[:3]),
        ),
    ],
)
def test_the_raw_ops_guard_their_memory(name: str, arguments: tuple[Any, ...]) -> None:
    with pytest.raises(RuntimeError, match="mqgrad: "):
        getattr(torch.ops.mqgrad, name)(*arguments)


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
    reason = (
        "it was not built: pip install -v" if library == "missing" else "_C.abi3.so: "
    )  # what the linker says of it
    assert reason in after
    assert run.stdout.strip() == str(PAYLOAD.tolist())
