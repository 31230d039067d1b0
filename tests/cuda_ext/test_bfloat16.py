"""Width 16: the kernels give the bytes of the reference, whatever lengths, alignments, threads and values are."""

import math

import pytest
import torch
from any_floats import any_floats
from built import needs_extension
from hypothesis import given
from hypothesis import strategies as st
from same_bits import assert_same
from torch import Tensor

from mqgrad import cuda_ext
from mqgrad.cuda_ext import reference_bfloat16 as reference
from mqgrad.cuda_ext.reference import mean_of

BYTES = torch.zeros(8, dtype=torch.uint8)
DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
LENGTHS = [*range(140), 2047, 2048, 2049, 4096, 5001, 32767, 65536, 70001]


def gradient(numel: int, seed: int = 0) -> Tensor:
    return torch.randn(numel, generator=torch.Generator().manual_seed(seed))


@needs_extension
@pytest.mark.parametrize("numel", LENGTHS)
def test_parity_at_any_length(numel: int) -> None:
    for x, owed in [
        (any_floats(numel), any_floats(numel, 1)),
        (gradient(numel), gradient(numel, 1) * 1e-3),
    ]:
        payload = cuda_ext.encode_bfloat16(x)
        assert_same(payload, reference.encode_bfloat16(x))
        assert_same(cuda_ext.decode_bfloat16(payload, numel), reference.decode_bfloat16(payload, numel))
        ours, expected = owed.clone(), owed.clone()
        for alpha, beta in [(1.0, 1.0), (0.3, 0.9)]:
            sent = cuda_ext.encode_bfloat16(x, residual=ours, alpha=alpha, beta=beta)
            assert_same(sent, reference.encode_bfloat16(x, residual=expected, alpha=alpha, beta=beta))
            assert_same(ours, expected)
        cuda_ext.decode_bfloat16_add_(ours, payload)
        reference.decode_bfloat16_add_(expected, payload)
        assert_same(ours, expected)


@needs_extension
@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
@pytest.mark.parametrize("numel", [0, 1, 31, 2049, 40000])
def test_mean_of_payloads(world_size: int, numel: int) -> None:
    x = gradient(world_size * numel).view(world_size, numel)
    if numel:
        x[0, numel // 2], x[-1, 0] = torch.inf, torch.nan
    payloads = torch.stack([cuda_ext.encode_bfloat16(row) for row in x])
    mean = mean_of(payloads, numel, reference.decode_bfloat16_add_)
    assert_same(cuda_ext.reduce_encode_bfloat16(payloads, numel), reference.encode_bfloat16(mean))
    ours, owed = gradient(numel, 1), gradient(numel, 1)
    payload = cuda_ext.reduce_encode_bfloat16(payloads, numel, residual=ours, alpha=0.5, beta=0.9)
    assert_same(payload, reference.encode_bfloat16(mean, residual=owed, alpha=0.5, beta=0.9))
    assert_same(ours, owed)


@needs_extension
@pytest.mark.parametrize("dtype", DTYPES)
def test_types_of_gradients(dtype: torch.dtype) -> None:
    x, ours, expected = gradient(5000).to(dtype), torch.zeros(5000), torch.zeros(5000)
    payload = cuda_ext.encode_bfloat16(x, residual=ours)
    assert_same(payload, reference.encode_bfloat16(x, residual=expected))
    assert_same(ours, expected)


@pytest.mark.parametrize("offset", range(9))
def test_slices_at_any_alignment(offset: int) -> None:
    """As the collective uses them; nothing beside them is touched."""
    numel = 300
    x, owed = gradient(numel + 16)[offset : offset + numel], torch.full((numel + 16,), 7.0)
    residual = owed[offset : offset + numel].zero_()
    payload = cuda_ext.encode_bfloat16(x, residual=residual)
    message = torch.full((2 * numel + 16,), 77, dtype=torch.uint8)
    message[offset : offset + 2 * numel] = payload
    flat = torch.full((numel + 16,), 7.0)
    part = flat[offset : offset + numel]
    received = message[offset : offset + 2 * numel]
    cuda_ext.decode_bfloat16_into(part, received)
    assert_same(part, x.bfloat16().float())
    assert_same(residual, x - part)
    for whole in (owed, flat):
        assert bool((whole[:offset] == 7).all() & (whole[offset + numel :] == 7).all())
    cuda_ext.decode_bfloat16_add_(residual, received)
    assert_same(residual, x)


def test_bytes_do_not_depend_on_threads() -> None:
    x, owed, before = any_floats(200_003), any_floats(200_003, 1), torch.get_num_threads()

    def run(threads: int) -> list[Tensor]:
        torch.set_num_threads(threads)
        residual = owed.clone()
        payload = cuda_ext.encode_bfloat16(x, residual=residual)
        mean = cuda_ext.reduce_encode_bfloat16(payload.repeat(2, 1), len(x))
        return [payload, residual, mean, cuda_ext.decode_bfloat16(payload, len(x))]

    try:
        single = run(1)
        for threads in (2, 5):
            for ours, expected in zip(run(threads), single, strict=True):
                assert_same(ours, expected)
    finally:
        torch.set_num_threads(before)


@given(st.floats(width=32), st.floats(width=32))
def test_what_is_not_finite_leaves_its_residual(value: float, owed: float) -> None:
    x, residual = torch.tensor([value]), torch.tensor([owed])
    payload = cuda_ext.encode_bfloat16(x, residual=residual)
    sent = cuda_ext.decode_bfloat16(payload, 1)
    assert_same(sent, (x + owed).bfloat16().float())
    kept = owed + (x - sent)
    assert_same(residual, kept if math.isfinite(kept) else torch.tensor([owed]))
    if sent.isnan():
        assert payload.tolist() == [0xC0, 0x7F]


@needs_extension
def test_opcheck() -> None:
    x = gradient(70)
    payload = cuda_ext.encode_bfloat16(x)
    ops = torch.ops.mqgrad
    torch.library.opcheck(
        ops.encode_bfloat16_into.default, (payload.clone(), [x], [0], x.clone(), 70, 1.0, 0.9)
    )
    reduction = (payload.clone(), payload.repeat(2, 1), None, 70, 1.0, 1.0)
    torch.library.opcheck(ops.reduce_encode_bfloat16_into.default, reduction)
    torch.library.opcheck(ops.decode_bfloat16.default, (payload, 70))
    torch.library.opcheck(ops.decode_bfloat16_into.default, ([x.clone()], [0], payload, 70))
    torch.library.opcheck(ops.decode_bfloat16_mean_into.default, ([x.clone()], [0], payload.repeat(2, 1), 70))
    torch.library.opcheck(ops.decode_bfloat16_add_.default, (x.clone(), payload))


@needs_extension
@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("encode_bfloat16_into", (BYTES, [torch.zeros(4, dtype=torch.int32)], [0], None, 4, 1.0, 1.0)),
        ("encode_bfloat16_into", (BYTES, [torch.zeros(8)[::2]], [0], None, 4, 1.0, 1.0)),
        ("encode_bfloat16_into", (BYTES, [torch.zeros(4)], [0], torch.zeros(3), 4, 1.0, 1.0)),
        ("encode_bfloat16_into", (BYTES[:7], [torch.zeros(4)], [0], None, 4, 1.0, 1.0)),
        ("reduce_encode_bfloat16_into", (BYTES, torch.zeros(2, 7, dtype=torch.uint8), None, 4, 1.0, 1.0)),
        ("reduce_encode_bfloat16_into", (BYTES, torch.zeros(0, 8, dtype=torch.uint8), None, 4, 1.0, 1.0)),
        ("decode_bfloat16", (torch.zeros(8, dtype=torch.uint8), 5)),
        ("decode_bfloat16", (torch.zeros(0, dtype=torch.uint8), 2**63 - 1)),  # twice that wraps to -2
        ("decode_bfloat16_into", ([torch.zeros(5)], [0], BYTES, 5)),
        ("decode_bfloat16_mean_into", ([torch.zeros(5)], [0], BYTES.repeat(2, 1), 5)),
        ("decode_bfloat16_add_", (torch.zeros(3), torch.zeros(8, dtype=torch.uint8))),
    ],
)
def test_the_raw_ops_guard_their_memory(name: str, arguments: tuple[object, ...]) -> None:
    with pytest.raises(RuntimeError, match="mqgrad: "):
        getattr(torch.ops.mqgrad, name)(*arguments)


def test_mistakes_are_named() -> None:
    x = torch.zeros(4)
    with pytest.raises(TypeError, match=r"torch\.int64"):
        cuda_ext.encode_bfloat16(x.long())
    with pytest.raises(ValueError, match=r"residual must have shape \(4,\), got \(3,\)"):
        cuda_ext.encode_bfloat16(x, residual=torch.zeros(3))
    with pytest.raises(ValueError, match="alpha and beta must be finite, got inf"):
        cuda_ext.encode_bfloat16(x, residual=torch.zeros(4), alpha=math.inf)
