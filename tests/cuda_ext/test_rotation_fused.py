"""The fused rotated ops give what their steps give in turn, with any number of threads."""

import math

import pytest
import torch
from built import needs_extension
from hypothesis import given
from hypothesis import strategies as st
from same_bits import assert_same
from torch import Tensor

from mqgrad import cuda_ext
from mqgrad.cuda_ext import library, reference_rotation

DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
BUCKET_SIZES = [8, 16, 32, 64, 128, 256, 512, 4096]
COEFFICIENTS = [(1.0, 1.0), (0.7, 0.9), (0.0, 1.0)]


def gradient(numel: int, special: float | None = None) -> Tensor:
    """Heavy-tailed, with zeros; `special` fills its second quarter."""
    generator = torch.Generator().manual_seed(numel)
    x = torch.randn(numel, generator=generator) ** 3
    x[: numel // 4] = 0.0
    if special is not None:
        x[numel // 4 : numel // 2] = special
    return x


def encode_in_steps(
    x: Tensor,
    residual: Tensor,
    bits: int,
    bucket_size: int,
    unbiased: bool,
    seed: int,
    alpha: float,
    beta: float,
) -> tuple[Tensor, Tensor]:
    """Payload and new residual, by the reference and plain torch."""
    x = x.float()
    payload = reference_rotation.encode_rotated(x + alpha * residual, bits, bucket_size, unbiased, seed)
    sent = reference_rotation.decode_rotated(payload, x.numel(), bits, bucket_size)
    kept = beta * residual + (x - sent)
    return payload, torch.where(kept.isfinite(), kept, residual)


def mean_in_steps(payloads: Tensor, numel: int, bits: int, bucket_size: int) -> Tensor:
    mean = torch.zeros(numel)
    for payload in payloads:
        reference_rotation.decode_rotated_add_(mean, payload, bits, bucket_size)
    return mean.div_(mean.new_tensor(len(payloads)))


@given(
    numel=st.integers(0, 1500),
    bits=st.integers(1, 4),
    bucket_size=st.sampled_from(BUCKET_SIZES),
    unbiased=st.booleans(),
    coefficients=st.sampled_from(COEFFICIENTS),
    dtype=st.sampled_from(DTYPES),
    special=st.sampled_from([None, 0.0, -0.0, math.nan, math.inf, 3e38, 1e-40]),
)
def test_feedback_is_encode_decode_and_a_subtraction(
    numel: int,
    bits: int,
    bucket_size: int,
    unbiased: bool,
    coefficients: tuple[float, float],
    dtype: torch.dtype,
    special: float | None,
) -> None:
    x, ours = gradient(numel, special).to(dtype), gradient(numel).flip(0) / 4
    expected = ours.clone()
    for seed in (numel - 3, 2**63 + numel):
        settings = (bits, bucket_size, unbiased, seed)
        alpha, beta = coefficients
        payload = cuda_ext.encode_rotated(x, *settings, residual=ours, alpha=alpha, beta=beta)
        signed = seed - 2**64 if seed >= 2**63 else seed
        expected_payload, expected = encode_in_steps(
            x, expected, bits, bucket_size, unbiased, signed, *coefficients
        )
        assert torch.equal(payload, expected_payload)
        assert_same(ours, expected)


@pytest.mark.parametrize("bits", [1, 2, 3, 4])
def test_a_device_without_the_fused_kernels_gets_the_same_bytes(
    monkeypatch: pytest.MonkeyPatch, bits: int
) -> None:
    """As CUDA tensors, which take the same steps in Python."""

    def run() -> list[Tensor]:
        x, residual, out = gradient(1300), gradient(1300).flip(0) / 4, torch.empty(1300)
        payload = cuda_ext.encode_rotated(x, bits, 512, True, 5, residual=residual, alpha=0.7, beta=0.9)
        cuda_ext.decode_rotated_into(out, payload, bits, 512)
        payloads = torch.stack([payload, cuda_ext.encode_rotated(-x, bits, 512, True, 6)])
        plain = cuda_ext.reduce_encode_rotated(payloads, 1300, bits, 512, True, 7)
        through = cuda_ext.reduce_encode_rotated(
            payloads, 1300, bits, 512, True, 7, residual=residual, alpha=0.7, beta=0.9
        )
        return [payload, out, plain, through, residual]

    fused = run()
    monkeypatch.setattr(library, "has_cpu_ops", lambda device: False)
    for ours, expected in zip(run(), fused, strict=True):
        assert_same(ours, expected)


def test_a_bucket_that_is_not_finite_keeps_its_residual() -> None:
    x, residual = gradient(512 * 3), torch.full((512 * 3,), 0.25)
    x[700] = math.nan
    cuda_ext.encode_rotated(x, 2, 512, True, 0, residual=residual)
    assert bool((residual[512:1024] == 0.25).all())
    assert bool((residual != 0.25)[:512].any())
    assert bool((residual != 0.25)[1024:].any())
    assert residual.isfinite().all()


@given(
    numel=st.integers(0, 1500),
    bits=st.integers(1, 4),
    bucket_size=st.sampled_from(BUCKET_SIZES),
    unbiased=st.booleans(),
    coefficients=st.sampled_from(COEFFICIENTS),
    world_size=st.integers(1, 4),
    special=st.sampled_from([None, math.nan, 3e38]),
)
def test_reduction_is_decode_sum_divide_encode(
    numel: int,
    bits: int,
    bucket_size: int,
    unbiased: bool,
    coefficients: tuple[float, float],
    world_size: int,
    special: float | None,
) -> None:
    x = gradient(numel, special)
    payloads = torch.stack(
        [cuda_ext.encode_rotated(x * (rank + 1), bits, bucket_size, True, rank) for rank in range(world_size)]
    )
    mean = mean_in_steps(payloads, numel, bits, bucket_size)
    settings = (bits, bucket_size, unbiased, 9)
    assert torch.equal(
        cuda_ext.reduce_encode_rotated(payloads, numel, *settings),
        reference_rotation.encode_rotated(mean, *settings),
    )
    residual = gradient(numel).flip(0) / 4
    expected_payload, expected = encode_in_steps(mean, residual, *settings, *coefficients)
    alpha, beta = coefficients
    payload = cuda_ext.reduce_encode_rotated(
        payloads, numel, *settings, residual=residual, alpha=alpha, beta=beta
    )
    assert torch.equal(payload, expected_payload)
    assert_same(residual, expected)


def test_same_bytes_on_any_number_of_threads() -> None:
    x, before = gradient(200_003), torch.get_num_threads()
    results = []
    try:
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            residual = x.flip(0) / 4
            settings = (3, 512, True, 5)
            payload = cuda_ext.encode_rotated(x, *settings, residual=residual, alpha=0.7)
            payloads = torch.stack([payload, payload])
            mean = cuda_ext.reduce_encode_rotated(payloads, len(x), *settings, residual=residual)
            results.append((payload, residual, mean, cuda_ext.decode_rotated(mean, len(x), 3, 512)))
    finally:
        torch.set_num_threads(before)
    for other in results[1:]:
        for ours, expected in zip(other, results[0], strict=True):
            assert_same(ours, expected)


def test_decoding_into_a_slice_touches_nothing_beside_it() -> None:
    payload = cuda_ext.encode_rotated(gradient(1000), 3, 64, True, 0)
    flat = torch.full((1009,), 7.0)
    part = flat[3:1003]
    cuda_ext.decode_rotated_into(part, payload, 3, 64)
    assert torch.equal(part, cuda_ext.decode_rotated(payload, 1000, 3, 64))
    assert bool((flat[:3] == 7).all() & (flat[1003:] == 7).all())


def test_mistakes_are_named() -> None:
    x, residual = torch.zeros(100), torch.zeros(99)
    with pytest.raises(ValueError, match=r"residual must have shape \(100,\)"):
        cuda_ext.encode_rotated(x, 2, 64, True, 0, residual=residual)
    with pytest.raises(ValueError, match="alpha and beta must be finite, got nan"):
        cuda_ext.encode_rotated(x, 2, 64, True, 0, residual=x, alpha=math.nan)


@needs_extension
def test_the_ops_themselves_guard_the_memory() -> None:
    ops, x = torch.ops.mqgrad, torch.zeros(100)
    payloads = torch.zeros(2, cuda_ext.rotated_bytes(100, 2, 64), dtype=torch.uint8)
    with pytest.raises(RuntimeError, match="residual must have 100 elements"):
        ops.encode_rotated_into(payloads[0], [x], [0], x[1:].clone(), 100, 2, 64, True, 0, 1.0, 1.0)
    with pytest.raises(RuntimeError, match="rows of"):
        ops.reduce_encode_rotated_into(payloads[0], payloads, None, 1000, 2, 64, True, 0, 1.0, 1.0)
    with pytest.raises(RuntimeError, match="payload must have"):
        ops.decode_rotated_into([torch.zeros(1000)], [0], payloads[0], 1000, 2, 64)
    with pytest.raises(RuntimeError, match="rows of"):
        ops.decode_rotated_mean_into([torch.zeros(1000)], [0], payloads, 1000, 2, 64)


@needs_extension
def test_opcheck() -> None:
    ops, x = torch.ops.mqgrad, gradient(700)
    payload = cuda_ext.encode_rotated(x, 2, 64, True, 1)
    feedback = (payload.clone(), [x], [0], x.flip(0), 700, 2, 64, True, 1, 0.7, 1.0)
    torch.library.opcheck(ops.encode_rotated_into.default, feedback)
    payloads = torch.stack([payload, payload])
    reduction = (payload.clone(), payloads, x.flip(0), 700, 2, 64, True, 1, 0.7, 1.0)
    torch.library.opcheck(ops.reduce_encode_rotated_into.default, reduction)
    torch.library.opcheck(ops.decode_rotated_into.default, ([x.clone()], [0], payload, 700, 2, 64))
    torch.library.opcheck(ops.decode_rotated_mean_into.default, ([x.clone()], [0], payloads, 700, 2, 64))


@needs_extension
def test_the_raw_op_refuses_a_length_whose_bytes_would_wrap() -> None:
    with pytest.raises(RuntimeError, match="mqgrad: numel must be in"):
        torch.ops.mqgrad.decode_rotated(torch.zeros(0, dtype=torch.uint8), 2**63 - 1, 4, 512)
