"""Figures of gradients: what they are, and the same from the C++ kernel and the reference."""

import math

import pytest
import torch
from built import needs_extension
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from mqgrad import cuda_ext
from mqgrad.cuda_ext import SKETCH_SIZE, gradient_figures, reference_figures

SIZES = st.integers(0, 70) | st.sampled_from([255, 256, 257, 2048, 2049, 9001])
BUCKET_SIZES = st.integers(1, 20) | st.sampled_from([256, 512, 3000, 2**40])
DTYPES = st.sampled_from([torch.float32, torch.float64, torch.float16, torch.bfloat16])


def gradients(sizes: list[int], seed: int = 0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [2.0**-i * torch.randn(size, generator=generator) for i, size in enumerate(sizes)]


@given(st.lists(SIZES, min_size=1, max_size=4), BUCKET_SIZES, DTYPES)
def test_sizes_are_those_of_the_elements(sizes: list[int], bucket_size: int, dtype: torch.dtype) -> None:
    own = [gradient.to(dtype) for gradient in gradients(sizes)]
    figures = gradient_figures(own, range(len(own)), bucket_size)
    for row, gradient in zip(figures, own, strict=True):
        buckets = gradient.double().split(min(bucket_size, 10_000)) if gradient.numel() else []
        peaks = [len(bucket) * float(bucket.abs().max()) ** 2 for bucket in buckets]
        assert float(row[0]) == pytest.approx(float(gradient.double().square().sum()), rel=1e-5)
        assert float(row[1]) == pytest.approx(sum(peaks), rel=1e-5)


@given(
    st.lists(SIZES, min_size=1, max_size=4),
    BUCKET_SIZES,
    st.integers(-(2**63), 2**63 - 1),
    st.integers(0, 2**40),
)
def test_the_kernel_does_as_the_reference(sizes: list[int], bucket_size: int, seed: int, key: int) -> None:
    keys = list(range(key, key + len(sizes)))
    own = gradients(sizes)
    torch.testing.assert_close(
        gradient_figures(own, keys, bucket_size, seed=seed),
        reference_figures.gradient_figures(own, keys, bucket_size, seed),
        rtol=1e-5,
        atol=1e-5,
    )


def test_sketches_keep_inner_products() -> None:
    generator = torch.Generator().manual_seed(0)
    common = torch.randn(20_000, generator=generator)
    x, y = (common + torch.randn(20_000, generator=generator) for _ in range(2))
    products = []
    for seed in range(50):
        first, second = (gradient_figures([v], [0], seed=seed)[0, 2:] for v in (x, y))
        products.append(float(first @ second))
    error = float(x.norm() * y.norm()) / SKETCH_SIZE**0.5
    assert abs(sum(products) / 50 - float(x @ y)) < 4 * error / 50**0.5
    assert sum((p - float(x @ y)) ** 2 for p in products) / 50 < (2 * error) ** 2


def test_signs_are_even_and_independent() -> None:
    """Of places, of rows, of keys and of seeds: each pair agrees half of the time."""
    ones = torch.ones(SKETCH_SIZE)

    def signs(key: int, seed: int, row: int) -> Tensor:
        gradient = torch.cat([torch.zeros(row * SKETCH_SIZE), ones])
        return gradient_figures([gradient], [key], seed=seed)[0, 2:]

    rows = torch.stack([signs(key, seed, row) for key in range(8) for seed in range(8) for row in range(8)])
    assert torch.equal(rows.abs(), torch.ones_like(rows))
    count = len(rows)  # each mean below has a standard deviation of one over the root of its number of signs
    assert rows.mean(dim=0).abs().max() < 5 / count**0.5
    assert rows.mean(dim=1).abs().max() < 5 / SKETCH_SIZE**0.5
    between_places = rows.T @ rows / count - torch.eye(SKETCH_SIZE)
    between_rows = rows @ rows.T / SKETCH_SIZE - torch.eye(count)
    assert between_places.abs().max() < 6 / count**0.5
    assert between_rows.abs().max() < 6 / SKETCH_SIZE**0.5


@pytest.mark.parametrize("special", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_shows(special: float) -> None:
    gradient = torch.ones(2000)
    gradient[700] = special
    norm_sq, peak_energy, *sketch = gradient_figures([gradient], [0])[0].tolist()
    assert not math.isfinite(norm_sq)
    assert not math.isfinite(peak_energy)
    assert sum(not math.isfinite(value) for value in sketch) == 1


def test_the_same_on_any_number_of_threads() -> None:
    own, before = gradients([1_300_001, 5, 300_000]), torch.get_num_threads()
    results = []
    try:
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            results.append(gradient_figures(own, [0, 1, 2], 384))
    finally:
        torch.set_num_threads(before)
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


def test_wrong_arguments() -> None:
    gradient = torch.ones(5)
    with pytest.raises(ValueError, match="at least one gradient and as many keys, got 0 and 0"):
        gradient_figures([], [])
    with pytest.raises(ValueError, match="got 1 and 2"):
        gradient_figures([gradient], [0, 1])
    with pytest.raises(ValueError, match=r"bucket_size must be at least 1 and below .*, got 0"):
        gradient_figures([gradient], [0], 0)
    with pytest.raises(ValueError, match="a key must fit 64 bits"):
        gradient_figures([gradient], [2**64])
    with pytest.raises(ValueError, match="on one device, got meta and cpu"):
        gradient_figures([gradient, gradient.to("meta")], [0, 1])
    with pytest.raises(TypeError, match="int64"):
        gradient_figures([gradient.long()], [0])
    with pytest.raises(ValueError, match=r"\(1, 5\)"):
        gradient_figures([gradient.view(1, 5)], [0])


@needs_extension
def test_shapes_are_known_without_data() -> None:
    torch.library.opcheck(torch.ops.mqgrad.gradient_figures.default, (gradients([5, 7]), [0, 1], 512, 0))


def test_a_sketch_in_slices_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    own = gradients([5000])
    whole = reference_figures.gradient_figures(own, [3], 512, seed=1)
    monkeypatch.setattr(reference_figures, "SLICE", 1024)
    sliced = reference_figures.gradient_figures(own, [3], 512, seed=1)
    torch.testing.assert_close(sliced, whole, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("scale", [1e19, 1e-23])
def test_squares_beyond_fp32_are_those_of_the_elements(scale: float) -> None:
    x = scale * torch.randn(5000, generator=torch.Generator().manual_seed(0))
    row = cuda_ext.gradient_figures([x], [0], 512, seed=1)[0]
    assert float(row[0]) == pytest.approx(float(x.double().square().sum()), rel=1e-6)


def test_one_bucket_that_is_not_finite_leaves_no_nan_in_the_peak_energy() -> None:
    x = torch.ones(1000)
    x[-1] = math.inf
    for implementation in (cuda_ext.gradient_figures, reference_figures.gradient_figures):
        assert implementation([x], [0], 512, seed=1)[0, 1] == math.inf


def test_no_gradient_flows_through_figures() -> None:
    own = [gradient.requires_grad_() for gradient in gradients([700, 3])]
    assert not gradient_figures(own, [0, 1], 512).requires_grad
