"""Error feedback: nothing is lost, and nothing is owed for a bucket that did not arrive."""

import pytest
import torch
from torch import Tensor

from mqgrad import cuda_ext
from mqgrad.codecs.codec import codec_at
from mqgrad.codecs.vector_codec import Feedback

WIDTHS = range(1, 9)


def gradients(steps: int, numel: int = 1000) -> Tensor:
    return torch.randn(steps, numel, generator=torch.Generator().manual_seed(2))


@pytest.mark.parametrize("bits", WIDTHS)
@pytest.mark.parametrize("stochastic", [False, True])
def test_one_step_is_the_formula(bits: int, stochastic: bool) -> None:
    x, residual = gradients(2).unbind()
    alpha, beta = 0.7, 0.9
    expected_payload = cuda_ext.encode(x + alpha * residual, bits, 128, stochastic, 4)
    sent = cuda_ext.decode(expected_payload, len(x), bits, 128)
    owed, error = beta * residual.double(), x.double() - sent.double()
    payload = cuda_ext.encode(x, bits, 128, stochastic, 4, residual=residual, alpha=alpha, beta=beta)
    assert torch.equal(payload, expected_payload)
    # Half an ulp each of beta, the product, the difference and the sum.
    bound = 2**-24 * (2 * owed.abs() + error.abs() + (owed + error).abs())
    assert ((residual.double() - (owed + error)).abs() <= 1.0001 * bound).all()


@pytest.mark.parametrize("bits", WIDTHS)
def test_sent_plus_owed_is_what_came_in(bits: int) -> None:
    steps = 200
    residual = torch.zeros(1000)
    sent = torch.zeros(1000, dtype=torch.float64)
    for step, x in enumerate(gradients(steps)):
        payload = cuda_ext.encode(x, bits, 128, False, step, residual=residual)
        sent += cuda_ext.decode(payload, 1000, bits, 128)
    came_in = gradients(steps).double().sum(0)
    owed_ulp = float(residual.abs().max()) * 2**-23
    assert float((sent + residual - came_in).abs().max()) < steps * owed_ulp


@pytest.mark.parametrize("bits", WIDTHS)
def test_feedback_on_nearest_rounding_stays_bounded(bits: int) -> None:
    residual = torch.zeros(1000)
    norms = []
    for step, x in enumerate(gradients(300)):
        cuda_ext.encode(x, bits, 128, False, step, residual=residual)
        norms.append(float(residual.norm()))
    assert max(norms[150:]) < 1.2 * max(norms[:150])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_a_residual_is_float32_whatever_the_gradient_is(dtype: torch.dtype) -> None:
    x = gradients(1)[0].to(dtype)
    ours, expected = torch.ones(1000), torch.ones(1000)
    payload = cuda_ext.encode(x, 2, 128, False, 0, residual=ours)
    assert torch.equal(payload, cuda_ext.encode(x.float(), 2, 128, False, 0, residual=expected))
    assert torch.equal(ours, expected)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("bad_residual", [False, True])
def test_a_non_finite_bucket_keeps_its_residual(bad: float, bad_residual: bool) -> None:
    x, residual = gradients(2, 24).unbind()
    (residual if bad_residual else x)[9] = bad
    before = residual.clone()
    payload = cuda_ext.encode(x, 4, 8, False, 0, residual=residual)
    assert bool(cuda_ext.decode(payload, 24, 4, 8)[8:16].isnan().all())
    torch.testing.assert_close(residual[8:16], before[8:16], rtol=0, atol=0, equal_nan=True)
    assert not torch.equal(residual[:8], before[:8])
    assert not torch.equal(residual[16:], before[16:])


@pytest.mark.parametrize("bits", [1 / 2, 1, 2, 4, 8])
@pytest.mark.parametrize("rounding", ["nearest", "stochastic"])
def test_large_elements_leave_a_finite_residual(bits: float, rounding: str) -> None:
    """An element and what is sent for it may be further apart than a float holds; then a bucket was lost for good."""
    x = torch.full((4096,), 0.9 * torch.finfo(torch.float32).max)
    x[::2] *= -0.7
    codec, residual = codec_at(bits, rounding=rounding), torch.zeros_like(x)
    for seed in range(4):
        codec.encode(x, seed, feedback=Feedback(residual, alpha=0.2))
        assert residual.isfinite().all()


@pytest.mark.parametrize("bits", [1 / 2, 1, 4, 16, 32])
def test_a_residual_stays_out_of_the_graph(bits: float) -> None:
    x, residual = torch.randn(512, requires_grad=True), torch.zeros(512)
    codec_at(bits).encode(x, feedback=Feedback(residual))
    assert not residual.requires_grad


def test_what_is_written_must_be_what_it_looks_like() -> None:
    with pytest.raises(ValueError, match=r"residual .* must not be a negated view"):
        cuda_ext.encode(torch.ones(64), 4, 64, False, 0, residual=torch._neg_view(torch.zeros(64)))
    with pytest.raises(ValueError, match=r"alpha and beta must be finite, got 1e\+39"):
        cuda_ext.encode(torch.ones(64), 4, 64, False, 0, residual=torch.zeros(64), alpha=1e39)
