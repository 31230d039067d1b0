"""The CUDA kernels on a GPU give the bytes of the CPU kernels, on any stream, captured in a graph, without waiting.

Needs torch, numpy and pytest only. MQGRAD_REQUIRE_CUDA turns the skip into a failure.
"""

import itertools

import pytest
import same_bits
import torch
from built import needs_cuda
from torch import Tensor

from mqgrad import cuda_ext
from mqgrad.cuda_ext import library

pytestmark = needs_cuda

WIDTHS = range(1, 9)
DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
SHAPES = [
    (1, 512),
    (1300, 512),
    (700, 2**62),
    (777, 96),
    (5000, 2048),
    (8200, 8192),
    (9000, 2**62),
    (1543, 100),
]
SHAPES += [(130, 1), (20_000, 16_384), (1_000_003, 512)]


def gradient(numel: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """On the CPU: heavy-tailed, with zeros, a constant stretch, ties between levels and a NaN near the end."""
    generator = torch.Generator().manual_seed(numel)
    x = torch.randn(numel, generator=generator) * torch.randn(numel, generator=generator).exp()
    x[numel // 4 : numel // 2] = 0.0
    x[numel // 2 : numel // 2 + numel // 8] = -0.75
    x[::9] = (x[::9] * 8).round() / 8
    if numel > 1000:
        x[-3] = torch.nan
    return x.to(dtype)


def assert_same(ours: Tensor, expected: Tensor) -> None:
    assert ours.is_cuda
    same_bits.assert_same(ours, expected)


def test_the_kernels_are_there() -> None:
    assert torch.cuda.is_available()
    assert "cuda" in library.COMPILED_DEVICES


@pytest.mark.parametrize("stochastic", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bits", WIDTHS)
def test_encode_and_decode(bits: int, dtype: torch.dtype, stochastic: bool) -> None:
    for (numel, bucket_size), shift in itertools.product(SHAPES, (0, 1)):
        x = gradient(numel + shift, dtype)
        payload = cuda_ext.encode(x[shift:], bits, bucket_size, stochastic, 5)
        on_gpu = cuda_ext.encode(x.cuda()[shift:], bits, bucket_size, stochastic, 5)
        assert_same(on_gpu, payload)
        assert_same(
            cuda_ext.decode(on_gpu, numel, bits, bucket_size),
            cuda_ext.decode(payload, numel, bits, bucket_size),
        )


@pytest.mark.parametrize("shift", [0, 1, 2, 3])
@pytest.mark.parametrize("bits", WIDTHS)
def test_decode_any_bytes_at_any_address(bits: int, shift: int) -> None:
    generator = torch.Generator().manual_seed(bits)
    for numel, bucket_size in SHAPES:
        size = cuda_ext.payload_bytes(numel, bits, bucket_size)
        payload = torch.randint(0, 256, (size + shift,), generator=generator, dtype=torch.uint8)
        ours, expected = torch.ones(numel + shift).cuda()[shift:], torch.ones(numel)
        cuda_ext.decode_add_(ours, payload.cuda()[shift:], bits, bucket_size)
        cuda_ext.decode_add_(expected, payload[shift:], bits, bucket_size)
        assert_same(ours, expected)


@pytest.mark.parametrize("stochastic", [False, True])
@pytest.mark.parametrize("bits", WIDTHS)
def test_encode_with_feedback(bits: int, stochastic: bool) -> None:
    coefficients = itertools.cycle([(1.0, 1.0), (0.3, 0.9)])
    for (numel, bucket_size), (alpha, beta) in zip(SHAPES, coefficients, strict=False):
        x = gradient(numel)
        residual = torch.full((numel,), 0.01)
        on_gpu = residual.cuda()
        for step in range(3):
            settings, gains = (bits, bucket_size, stochastic, step), {"alpha": alpha, "beta": beta}
            expected = cuda_ext.encode(x, *settings, residual=residual, **gains)
            assert_same(cuda_ext.encode(x.cuda(), *settings, residual=on_gpu, **gains), expected)
            assert_same(on_gpu, residual)


@pytest.mark.parametrize("stochastic", [False, True])
@pytest.mark.parametrize("bits", WIDTHS)
def test_reduce_encode(bits: int, stochastic: bool) -> None:
    for numel, bucket_size in SHAPES:
        shards = [gradient(numel), gradient(numel).flip(0), torch.linspace(-1, 1, numel)]
        payloads = torch.stack([cuda_ext.encode(x, bits, bucket_size, False, 0) for x in shards])
        residual = torch.full((numel,), 0.01)
        on_gpu = residual.cuda()
        settings = (numel, bits, bucket_size, stochastic, 9)
        expected = cuda_ext.reduce_encode(payloads, *settings, residual=residual)
        assert_same(cuda_ext.reduce_encode(payloads.cuda(), *settings, residual=on_gpu), expected)
        assert_same(on_gpu, residual)


@pytest.mark.parametrize("bits", WIDTHS)
def test_decode_mean(bits: int) -> None:
    for numel, bucket_size in SHAPES:
        rows = [gradient(numel), gradient(numel).flip(0), torch.linspace(-1, 1, numel)]
        payloads = torch.stack([cuda_ext.encode(x, bits, bucket_size, False, 0) for x in rows])
        ours, expected = torch.empty(numel).cuda(), torch.empty(numel)
        cuda_ext.decode_mean_into(ours, payloads.cuda(), bits, bucket_size)
        cuda_ext.decode_mean_into(expected, payloads, bits, bucket_size)
        assert_same(ours, expected)


@pytest.mark.parametrize("shift", [0, 1, 4])
def test_writes_to_slices(shift: int) -> None:
    x = gradient(1000)
    expected = cuda_ext.encode(x, 3, 512, True, 5)
    memory = torch.zeros(len(expected) + shift, dtype=torch.uint8).cuda()
    cuda_ext.encode(x.cuda(), 3, 512, True, 5, out=memory[shift:])
    assert_same(memory[shift:], expected)
    values = torch.zeros(1000 + shift).cuda()
    cuda_ext.decode_into(values[shift:], memory[shift:], 3, 512)
    assert_same(values[shift:], cuda_ext.decode(expected, 1000, 3, 512))


def test_bucket_ids() -> None:
    for bucket_size in (128, 125):
        x, ids = gradient(1000), torch.tensor([3, 2**40, -1, 2**32 + 3, 0, 1, 2, 9])
        ours = cuda_ext.encode(x.cuda(), 4, bucket_size, True, 5, ids.cuda())
        assert_same(ours, cuda_ext.encode(x, 4, bucket_size, True, 5, ids))


@pytest.mark.parametrize("bits", WIDTHS)
@pytest.mark.parametrize("shape", [(1, 1), (40, 3), (3, 40), (70, 33), (2, 1200)])
def test_minmax(bits: int, shape: tuple[int, int]) -> None:
    for dtype in DTYPES:
        x = gradient(shape[0] * shape[1], dtype).view(shape)
        payload = cuda_ext.encode_minmax(x, bits)
        on_gpu = cuda_ext.encode_minmax(x.cuda(), bits)
        assert_same(on_gpu, payload)
        assert_same(
            cuda_ext.decode_minmax(on_gpu, *shape, bits), cuda_ext.decode_minmax(payload, *shape, bits)
        )


@pytest.mark.parametrize("bucket_size", [512, 100])
def test_nothing_waits_for_the_gpu(bucket_size: int) -> None:
    x, residual = gradient(5000).cuda(), torch.zeros(5000).cuda()
    torch.cuda.set_sync_debug_mode("error")
    try:
        payload = cuda_ext.encode(x, 3, bucket_size, False, 1, residual=residual)
        cuda_ext.decode_add_(residual, payload, 3, bucket_size)
        payloads = payload.repeat(3, 1)
        cuda_ext.reduce_encode(payloads, 5000, 3, bucket_size, True, 1, residual=residual)
        cuda_ext.decode_mean_into(residual, payloads, 3, bucket_size)
        cuda_ext.decode_minmax(cuda_ext.encode_minmax(x.view(50, 100), 4), 50, 100, 4)
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("bucket_size", [512, 100])
def test_runs_on_the_current_stream(bucket_size: int) -> None:
    """The input is written on a side stream after a delay: kernels on another stream would read what was there."""
    values = gradient(100_000)
    x, stream = torch.zeros(100_000).cuda(), torch.cuda.Stream()
    values_on_gpu = values.cuda()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(100_000_000)
        x.copy_(values_on_gpu)
        payload = cuda_ext.encode(x, 4, bucket_size, True, 1)
        decoded = cuda_ext.decode(payload, 100_000, 4, bucket_size)
    stream.synchronize()
    expected = cuda_ext.encode(values, 4, bucket_size, True, 1)
    assert_same(payload, expected)
    assert_same(decoded, cuda_ext.decode(expected, 100_000, 4, bucket_size))


@pytest.mark.parametrize("stochastic", [False, True])
@pytest.mark.parametrize("bucket_size", [512, 100])
def test_cuda_graph(bucket_size: int, stochastic: bool) -> None:
    x = torch.zeros(10_000).cuda()
    for _ in range(2):  # once to warm up, once more
        cuda_ext.encode(x, 4, bucket_size, stochastic, 1)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        payload = cuda_ext.encode(x, 4, bucket_size, stochastic, 1)
        decoded = cuda_ext.decode(payload, 10_000, 4, bucket_size)
    for numel in (10_000, 9_999):
        values = torch.nn.functional.pad(gradient(numel), (0, 10_000 - numel))
        x.copy_(values)
        graph.replay()
        expected = cuda_ext.encode(values, 4, bucket_size, stochastic, 1)
        assert_same(payload, expected)
        assert_same(decoded, cuda_ext.decode(expected, 10_000, 4, bucket_size))


def test_more_elements_than_31_bits_count() -> None:
    """The last bucket of 2^31 + 1000 elements, against the same elements alone."""
    numel, bucket_size = 2**31 + 1000, 512
    if torch.cuda.mem_get_info()[0] < 16 * 2**30:
        pytest.skip("needs 16 GiB of free GPU memory")
    x = torch.zeros(numel, dtype=torch.bfloat16, device="cuda")
    values = gradient(1000).nan_to_num().to(torch.bfloat16)
    x[-1000:] = values.cuda()
    payload = cuda_ext.encode(x, 4, bucket_size, False, 1)
    decoded = cuda_ext.decode(payload, numel, 4, bucket_size)[-1000:]
    expected = cuda_ext.encode(values, 4, bucket_size, False, 1)  # 2^31 is a multiple of the bucket size
    assert_same(decoded, cuda_ext.decode(expected, 1000, 4, bucket_size))
