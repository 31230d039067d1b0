"""The CUDA kernels of width 16 on a GPU give the bytes of the CPU kernels; see test_cuda.py."""

import itertools
from collections.abc import Callable

import pytest
import same_bits
import torch
from any_floats import any_floats
from built import needs_cuda
from torch import Tensor

from mqgrad import cuda_ext

pytestmark = needs_cuda

NUMELS = (0, 1, 3, 4, 5, 511, 512, 513, 4096, 9001, 1_000_003)
DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16]


def assert_same(ours: Tensor, expected: Tensor) -> None:
    assert ours.is_cuda
    same_bits.assert_same(ours, expected)


def gradient(numel: int, seed: int = 0) -> Tensor:
    return torch.randn(numel, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shift", [0, 1, 2])
def test_encode(dtype: torch.dtype, shift: int) -> None:
    for numel in NUMELS:
        x = any_floats(numel + shift).to(dtype)
        if dtype == torch.float64:
            x *= 1 + 2**-26  # has to be rounded to float32
        assert_same(cuda_ext.encode_bfloat16(x.cuda()[shift:]), cuda_ext.encode_bfloat16(x[shift:]))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("make", [any_floats, gradient])
def test_encode_with_feedback(make: Callable[[int, int], Tensor], dtype: torch.dtype) -> None:
    for numel, (alpha, beta) in itertools.product(NUMELS, ((1.0, 1.0), (0.3, 0.9))):
        x, residual = make(numel, 0).to(dtype), make(numel, 1)
        on_gpu = residual.cuda()
        for _ in range(2):
            expected = cuda_ext.encode_bfloat16(x, residual=residual, alpha=alpha, beta=beta)
            assert_same(cuda_ext.encode_bfloat16(x.cuda(), residual=on_gpu, alpha=alpha, beta=beta), expected)
            assert_same(on_gpu, residual)


@pytest.mark.parametrize("world_size", [1, 2, 5])
def test_reduce_encode(world_size: int) -> None:
    for numel in NUMELS:
        rows = [gradient(numel, rank) for rank in range(world_size - 1)]
        payloads = torch.stack([cuda_ext.encode_bfloat16(x) for x in [*rows, any_floats(numel)]])
        assert_same(
            cuda_ext.reduce_encode_bfloat16(payloads.cuda(), numel),
            cuda_ext.reduce_encode_bfloat16(payloads, numel),
        )
        residual = gradient(numel, 9)
        on_gpu = residual.cuda()
        expected = cuda_ext.reduce_encode_bfloat16(payloads, numel, residual=residual, alpha=0.5, beta=0.9)
        assert_same(
            cuda_ext.reduce_encode_bfloat16(payloads.cuda(), numel, residual=on_gpu, alpha=0.5, beta=0.9),
            expected,
        )
        assert_same(on_gpu, residual)
        mean, on_gpu = torch.empty(numel), torch.empty(numel).cuda()
        cuda_ext.decode_bfloat16_mean_into(mean, payloads)
        cuda_ext.decode_bfloat16_mean_into(on_gpu, payloads.cuda())
        assert_same(on_gpu, mean)


@pytest.mark.parametrize("shift", range(9))
def test_decode_any_bytes_at_any_address(shift: int) -> None:
    generator = torch.Generator().manual_seed(shift)
    for numel in NUMELS:
        payload = torch.randint(0, 256, (2 * numel + shift,), generator=generator, dtype=torch.uint8)
        on_gpu, expected = payload.cuda()[shift:], cuda_ext.decode_bfloat16(payload[shift:], numel)
        assert_same(cuda_ext.decode_bfloat16(on_gpu, numel), expected)
        out = torch.ones(numel + shift).cuda()
        cuda_ext.decode_bfloat16_into(out[shift:], on_gpu)
        cuda_ext.decode_bfloat16_add_(out[shift:], on_gpu)
        assert_same(out, torch.cat([torch.ones(shift), expected + expected]))


def test_nothing_waits_and_a_graph_can_capture_it() -> None:
    numel = 50_000
    x, residual = torch.zeros(numel).cuda(), torch.zeros(numel).cuda()

    def round_trip(x: Tensor, residual: Tensor) -> list[Tensor]:
        payload = cuda_ext.encode_bfloat16(x, residual=residual)
        mean = cuda_ext.reduce_encode_bfloat16(payload.repeat(3, 1), numel)
        decoded = cuda_ext.decode_bfloat16(mean, numel)
        cuda_ext.decode_bfloat16_add_(decoded, payload)
        of_all = torch.empty_like(decoded)
        cuda_ext.decode_bfloat16_mean_into(of_all, payload.repeat(3, 1))
        return [payload, mean, decoded, of_all]

    torch.cuda.set_sync_debug_mode("error")
    try:
        round_trip(x, residual)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = round_trip(x, residual)
    values, owed = gradient(numel), gradient(numel, 1)
    x.copy_(values)
    residual.copy_(owed)
    graph.replay()
    for ours, expected in zip([*results, residual], [*round_trip(values, owed), owed], strict=True):
        assert_same(ours, expected)


def test_runs_on_the_current_stream() -> None:
    """The input is written on a side stream after a delay: kernels on another stream would read what was there."""
    values = gradient(100_000)
    x, values_on_gpu, stream = torch.zeros(100_000).cuda(), values.cuda(), torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(100_000_000)
        x.copy_(values_on_gpu)
        payload = cuda_ext.encode_bfloat16(x)
        decoded = cuda_ext.decode_bfloat16(payload, 100_000)
    stream.synchronize()
    expected = cuda_ext.encode_bfloat16(values)
    assert_same(payload, expected)
    assert_same(decoded, cuda_ext.decode_bfloat16(expected, 100_000))


def test_more_elements_than_31_bits_count() -> None:
    """The last of 2^31 + 1000 elements, against the same elements alone."""
    numel = 2**31 + 1000
    if torch.cuda.mem_get_info()[0] < 20 * 2**30:
        pytest.skip("needs 20 GiB of free GPU memory")
    x = torch.zeros(numel, dtype=torch.bfloat16, device="cuda")
    values = gradient(1000).to(torch.bfloat16)
    x[-1000:] = values.cuda()
    payload = cuda_ext.encode_bfloat16(x)
    reduced = cuda_ext.reduce_encode_bfloat16(payload.unsqueeze(0), numel)
    assert_same(reduced[-2000:], cuda_ext.encode_bfloat16(values))
    del x, reduced
    assert_same(cuda_ext.decode_bfloat16(payload, numel)[-1000:], values.float())
