"""Build, check and time the CUDA kernels on the GPU at hand, in one call of a few minutes:

    python experiments/benchmarks/cuda_codec.py --output cuda-codec.json

It needs a CUDA build of torch and its nvcc, numpy, setuptools, ninja. The package is built into a temporary folder.

1. Build for this card.
2. Compare payloads, residuals and decoded values with those of the CPU kernels.
3. Do the same on a few shapes under compute-sanitizer (memcheck, racecheck, synccheck), where that is installed.
4. Time the ops of a gradient's way on 256 M elements. A figure is the bytes moved, each read and each write counted
   once, over the median time, as a fraction of what the same card's device-to-device copy moved a moment before.
"""

import argparse
import datetime
import itertools
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

ROOT = Path(__file__).resolve().parents[2]
NUMEL, BUCKET_SIZE, RANKS = 2**28, 512, 4
WARM_UPS, REPETITIONS = 3, 15
SHAPES = [(1, 512), (1300, 512), (777, 96), (5000, 2048), (9000, 2**62), (1543, 100), (20_000, 16_384)]
LARGE_SHAPES = [(10_000_019, 512), (3_000_000, 8192), (1_000_003, 1000), (5_000_000, 2**62)]
ROTATED_SHAPES = [(1, 8), (2500, 8), (4200, 16), (4999, 128), (9000, 512), (6000, 4096), (20_000, 8192)]
LARGE_ROTATED_SHAPES = [(10_000_019, 512), (6_000_000, 8192), (1_000_003, 65_536)]
SANITIZER_TOOLS = ("memcheck", "racecheck", "synccheck")
SANITIZER_SECONDS = 180


def gradient(numel: int) -> Tensor:
    """On the CPU: heavy-tailed, with zeros, ties between levels and a NaN near the end."""
    generator = torch.Generator().manual_seed(numel)
    x = torch.randn(numel, generator=generator) * torch.randn(numel, generator=generator).exp()
    x[numel // 4 : numel // 2] = 0.0
    x[::9] = (x[::9] * 8).round() / 8
    if numel > 1000:
        x[-3] = torch.nan
    return x


def unaligned(
    numel: int, dtype: torch.dtype = torch.float32, *, finite: bool = False
) -> tuple[Tensor, Tensor]:
    """A gradient on the CPU and on the GPU, where its address is not aligned for vector loads."""
    x = gradient(numel + 1).to(dtype)
    x = x.nan_to_num() if finite else x
    return x[1:], x.cuda()[1:]


def same(name: str, ours: Tensor, expected: Tensor) -> None:
    if not torch.equal(ours.cpu().nan_to_num(nan=-1e30), expected.nan_to_num(nan=-1e30)):
        raise SystemExit(f"cuda_codec: {name}: CUDA and CPU disagree")


def check(shapes: list[tuple[int, int]]) -> None:
    """Compare with the CPU kernels, at all widths and roundings."""
    from mqgrad import cuda_ext

    dtypes = itertools.cycle([torch.float32, torch.bfloat16, torch.float16, torch.float64])
    for (numel, bucket_size), bits, stochastic in itertools.product(shapes, range(1, 9), (False, True)):
        name = f"numel={numel}, bucket_size={bucket_size}, bits={bits}, stochastic={stochastic}"
        x, x_on_gpu = unaligned(numel, next(dtypes))
        residual = torch.full((numel,), 0.01)
        on_gpu = residual.cuda()
        arguments = (bits, bucket_size, stochastic, 7, 1.0, 1.0)
        payload = cuda_ext.encode_with_feedback(x_on_gpu, on_gpu, *arguments)
        expected = cuda_ext.encode_with_feedback(x, residual, *arguments)
        same(f"payload, {name}", payload, expected)
        same(f"residual, {name}", on_gpu, residual)
        aligned = cuda_ext.encode(x.cuda(), bits, bucket_size, stochastic, 7)
        same(f"aligned, {name}", aligned, cuda_ext.encode(x, bits, bucket_size, stochastic, 7))
        shifted = torch.cat([payload[:1], payload])[1:]
        cuda_ext.decode_add_(on_gpu, shifted, bits, bucket_size)
        cuda_ext.decode_add_(residual, expected, bits, bucket_size)
        same(f"sum, {name}", on_gpu, residual)
        payloads = torch.stack([expected, cuda_ext.encode(x, bits, bucket_size, False, 7)])
        reduced = cuda_ext.reduce_encode(
            payloads.cuda(), numel, bits, bucket_size, stochastic, 8, residual=on_gpu
        )
        expected_sum = cuda_ext.reduce_encode(
            payloads, numel, bits, bucket_size, stochastic, 8, residual=residual
        )
        same(f"reduced, {name}", reduced, expected_sum)
        same(f"residual of the reduced, {name}", on_gpu, residual)
        decoded = cuda_ext.decode(payload, numel, bits, bucket_size)
        same(f"decoded, {name}", decoded, cuda_ext.decode(expected, numel, bits, bucket_size))


def check_rotated(shapes: list[tuple[int, int]]) -> None:
    from mqgrad import cuda_ext

    for (numel, bucket_size), bits, unbiased in itertools.product(shapes, range(1, 5), (False, True)):
        name = f"numel={numel}, bucket_size={bucket_size}, bits={bits}, unbiased={unbiased}"
        (x, x_on_gpu), accumulator = unaligned(numel), torch.ones(numel)
        on_gpu = accumulator.cuda()
        payload = cuda_ext.encode_rotated(x_on_gpu, bits, bucket_size, unbiased, 7)
        expected = cuda_ext.encode_rotated(x, bits, bucket_size, unbiased, 7)
        same(f"rotated payload, {name}", payload, expected)
        cuda_ext.decode_rotated_add_(on_gpu, torch.cat([payload[:1], payload])[1:], bits, bucket_size)
        cuda_ext.decode_rotated_add_(accumulator, expected, bits, bucket_size)
        same(f"rotated sum, {name}", on_gpu, accumulator)


def check_sparse(numels: list[int]) -> None:
    from mqgrad import cuda_ext

    for numel, elements_per_bit, finite in itertools.product(numels, (1, 2, 8, 64), (False, True)):
        name = f"numel={numel}, elements_per_bit={elements_per_bit}, finite={finite}"
        (x, x_on_gpu), residual = unaligned(numel, finite=finite), torch.full((numel,), 0.01)
        on_gpu = residual.cuda()
        payload = cuda_ext.sparse_encode_with_feedback(x_on_gpu, on_gpu, elements_per_bit)
        expected = cuda_ext.sparse_encode_with_feedback(x, residual, elements_per_bit)
        same(f"sparse payload, {name}", payload, expected)
        same(f"sparse residual, {name}", on_gpu, residual)
        cuda_ext.sparse_decode_add_(on_gpu, torch.cat([payload[:1], payload])[1:], elements_per_bit)
        cuda_ext.sparse_decode_add_(residual, expected, elements_per_bit)
        same(f"sparse sum, {name}", on_gpu, residual)


def check_all(large: bool) -> None:
    check(SHAPES + LARGE_SHAPES * large)
    check_rotated(ROTATED_SHAPES + LARGE_ROTATED_SHAPES * large)
    check_sparse([numel for numel, _ in SHAPES + LARGE_SHAPES * large])


def seconds(operation: Callable[[], object]) -> float:
    """Median on the GPU's own clock."""
    times = []
    for repetition in range(WARM_UPS + REPETITIONS):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        operation()
        end.record()
        end.synchronize()
        if repetition >= WARM_UPS:
            times.append(start.elapsed_time(end) / 1e3)
    return statistics.median(times)


def operations(x: Tensor, bits: int) -> dict[str, tuple[int, Callable[[], object]]]:
    """Name to (bytes moved, call)."""
    from mqgrad import cuda_ext

    numel, half, residual = x.numel(), x.to(torch.bfloat16), torch.zeros_like(x)
    payload = cuda_ext.encode(x, bits, BUCKET_SIZE, True, 1)
    coded = payload.numel()
    arguments = (bits, BUCKET_SIZE, True, 1)
    payloads = payload.expand(RANKS, -1).contiguous()
    return {
        "encode, stochastic": (4 * numel + coded, lambda: cuda_ext.encode(x, *arguments)),
        "encode, nearest": (4 * numel + coded, lambda: cuda_ext.encode(x, bits, BUCKET_SIZE, False, 1)),
        "encode, bf16 input": (2 * numel + coded, lambda: cuda_ext.encode(half, *arguments)),
        "encode, feedback": (
            12 * numel + coded,
            lambda: cuda_ext.encode_with_feedback(x, residual, *arguments, 1.0, 1.0),
        ),
        "decode": (4 * numel + coded, lambda: cuda_ext.decode(payload, numel, bits, BUCKET_SIZE)),
        f"sum {RANKS}, encode": (
            (RANKS + 1) * coded,
            lambda: cuda_ext.reduce_encode(payloads, numel, *arguments),
        ),
        "decode and add": (
            8 * numel + coded,
            lambda: cuda_ext.decode_add_(residual, payload, bits, BUCKET_SIZE),
        ),
    }


def rotated_operations(x: Tensor, bits: int) -> dict[str, tuple[int, Callable[[], object]]]:
    from mqgrad import cuda_ext

    payload = cuda_ext.encode_rotated(x, bits, BUCKET_SIZE, True, 1)
    moved = x.nbytes + payload.numel()
    return {
        "rotated encode": (moved, lambda: cuda_ext.encode_rotated(x, bits, BUCKET_SIZE, True, 1)),
        "rotated decode": (moved, lambda: cuda_ext.decode_rotated(payload, x.numel(), bits, BUCKET_SIZE)),
    }


def sparse_operations(x: Tensor, elements_per_bit: int) -> dict[str, tuple[int, Callable[[], object]]]:
    """Encode reads the vector several times, which counts once."""
    from mqgrad import cuda_ext

    payload, residual = cuda_ext.sparse_encode(x, elements_per_bit), torch.zeros_like(x)
    coded = payload.numel()
    return {
        "sparse encode": (x.nbytes + coded, lambda: cuda_ext.sparse_encode(x, elements_per_bit)),
        "sparse encode, feedback": (
            3 * x.nbytes + coded,
            lambda: cuda_ext.sparse_encode_with_feedback(x, residual, elements_per_bit),
        ),
        "sparse decode": (
            x.nbytes + coded,
            lambda: cuda_ext.sparse_decode(payload, x.numel(), elements_per_bit),
        ),
    }


def operations_by_width(x: Tensor) -> Iterator[tuple[float, dict[str, tuple[int, Callable[[], object]]]]]:
    for bits in range(1, 9):
        yield bits, operations(x, bits)
    for bits in range(1, 5):
        yield bits, rotated_operations(x, bits)
    for elements_per_bit in (2, 8, 64):
        yield 1 / elements_per_bit, sparse_operations(x, elements_per_bit)


def measure() -> dict[str, Any]:
    """Fractions of the copy's bandwidth, by op and width."""
    x = torch.randn(NUMEL, device="cuda")
    copy = torch.empty_like(x)
    rows = []
    for bits, timed in operations_by_width(x):
        copied = 2 * x.nbytes / seconds(lambda: copy.copy_(x))
        for name, (moved, operation) in timed.items():
            rate = moved / seconds(operation)
            rows.append({"op": name, "bits": bits, "GB/s": rate / 1e9, "copy GB/s": copied / 1e9})
    return {
        "card": torch.cuda.get_device_name(),
        "date": datetime.date.today().isoformat(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "elements": NUMEL,
        "bucket_size": BUCKET_SIZE,
        "rows": rows,
    }


def print_table(result: dict[str, Any]) -> None:
    copies = [row["copy GB/s"] for row in result["rows"]]
    print(
        f"{result['card']}, {result['date']}, torch {result['torch']}, {result['elements'] / 2**20:.0f} Mi elements"
    )
    print(f"device-to-device copy {statistics.median(copies):.0f} GB/s; below, fractions of it by bits")
    for op, rows in itertools.groupby(
        sorted(result["rows"], key=lambda r: (r["op"], r["bits"])), lambda r: r["op"]
    ):
        fractions = (f"{row['bits']:g}: {row['GB/s'] / row['copy GB/s']:.2f}" for row in rows)
        print(op.ljust(24) + "  ".join(fractions))


def build(folder: str) -> dict[str, str]:
    """Install the package into `folder`; the environment in which it is imported from there."""
    capability = ".".join(map(str, torch.cuda.get_device_capability()))
    install = [
        "pip",
        "install",
        "--verbose",
        "--no-deps",
        "--no-build-isolation",
        "--target",
        folder,
        str(ROOT),
    ]
    built = subprocess.run(
        [sys.executable, "-m", *install],
        env={**os.environ, "TORCH_CUDA_ARCH_LIST": capability},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    environment = {**os.environ, "PYTHONPATH": folder}
    test = [
        sys.executable,
        "-c",
        "from mqgrad.cuda_ext.library import COMPILED_DEVICES as d; assert 'cuda' in d",
    ]
    if built.returncode or subprocess.run(test, env=environment, cwd=folder, check=False).returncode:
        raise SystemExit(
            f"{built.stdout[-8000:]}\ncuda_codec: the CUDA kernels were not built; the messages are above"
        )
    return environment


def sanitize(script: list[str], environment: dict[str, str]) -> dict[str, str]:
    """Run the check on small shapes under each tool; what came of it."""
    sanitizer = shutil.which("compute-sanitizer")
    if sanitizer is None:
        return dict.fromkeys(SANITIZER_TOOLS, "compute-sanitizer is not installed")
    outcome = {}
    uncached = {
        **environment,
        "PYTORCH_NO_CUDA_MEMORY_CACHING": "1",
    }  # else a pool hides what lies outside a tensor
    for tool in SANITIZER_TOOLS:
        command = [sanitizer, "--tool", tool, "--error-exitcode", "9", *script, "--step", "check-small"]
        try:
            code = subprocess.run(command, env=uncached, check=False, timeout=SANITIZER_SECONDS).returncode
            outcome[tool] = "clean" if code == 0 else f"exit status {code}"
        except subprocess.TimeoutExpired:
            outcome[tool] = f"not finished in {SANITIZER_SECONDS} s"
    return outcome


def everything(output: Path) -> None:
    if not torch.cuda.is_available():
        raise SystemExit(
            "cuda_codec: no GPU here (torch.cuda.is_available() is false); nothing was checked or timed"
        )
    script = [sys.executable, str(Path(__file__).resolve())]
    with tempfile.TemporaryDirectory() as folder:
        environment = build(folder)
        subprocess.run([*script, "--step", "check"], env=environment, cwd=folder, check=True)
        print("CUDA and CPU give the same bytes", flush=True)
        sanitized = sanitize(script, environment)
        measured = subprocess.run(
            [*script, "--step", "measure"],
            env=environment,
            cwd=folder,
            check=True,
            capture_output=True,
            text=True,
        )
    result = {**json.loads(measured.stdout), "sanitizer": sanitized}
    output.write_text(json.dumps(result, indent=1) + "\n")
    print(f"compute-sanitizer: {sanitized}")
    print_table(result)
    if any(outcome.startswith("exit status") for outcome in sanitized.values()):
        raise SystemExit("cuda_codec: compute-sanitizer found errors; its messages are above")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output", type=Path, default=Path("cuda-codec.json"))
    parser.add_argument("--step", choices=["check", "check-small", "measure"], help="of the built package")
    arguments = parser.parse_args()
    if arguments.step is None:
        everything(arguments.output)
        return
    if arguments.step == "measure":
        print(json.dumps(measure()))
    else:
        check_all(large=arguments.step == "check")


if __name__ == "__main__":
    main()
