"""MQGrad's own quantizer against its formula, written out element by element."""

import math

import pytest
import torch

from mqgrad import cuda_ext

WIDTHS = range(1, 9)


def roundtrip(x: torch.Tensor, bits: int) -> torch.Tensor:
    return cuda_ext.decode_minmax(cuda_ext.encode_minmax(x, bits), x.shape[0], x.shape[1], bits)


def by_hand(column: list[float], bits: int) -> list[float]:
    cells, low, high = 2**bits, min(column), max(column)
    indices = [min(cells - 1, math.floor((x - low) * cells / (high - low + 1e-6))) for x in column]
    return [low + (high - low) / cells * (q + 0.5) for q in indices]


@pytest.mark.parametrize("bits", WIDTHS)
def test_it_is_the_formula(bits: int) -> None:
    x = torch.randn(50, 3, generator=torch.Generator().manual_seed(bits))
    expected = torch.tensor([by_hand(column, bits) for column in x.T.tolist()]).T
    torch.testing.assert_close(roundtrip(x, bits), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("bits", WIDTHS)
def test_the_error_is_at_most_half_a_cell(bits: int) -> None:
    x = 100 * torch.randn(200, 7, generator=torch.Generator().manual_seed(1))
    cell = (x.amax(0) - x.amin(0)) / 2**bits
    assert bool(((roundtrip(x, bits) - x).abs() <= cell * 0.5001).all())


@pytest.mark.parametrize("value", [0.0, -0.0, -2.5, 3e38, 1e-45])
def test_constant_columns_are_exact(value: float) -> None:
    x = torch.randn(30, 3)
    x[:, 1] = value
    assert torch.equal(roundtrip(x, 2)[:, 1], x[:, 1])


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("row", [0, 13, 29])
def test_a_non_finite_column_is_nan(bad: float, row: int) -> None:
    x = torch.randn(30, 3)
    expected = roundtrip(x, 4)
    x[row, 1] = bad
    decoded = roundtrip(x, 4)
    assert bool(decoded[:, 1].isnan().all())
    assert torch.equal(decoded[:, [0, 2]], expected[:, [0, 2]])


def test_a_range_that_overflows_is_nan() -> None:
    assert bool(roundtrip(torch.tensor([[3e38], [-3e38]]), 4).isnan().all())
    huge = torch.tensor([[3e38], [0.0], [1.4e38]])
    assert float((roundtrip(huge, 8) - huge).abs().max()) < 3e38 / 256


@pytest.mark.parametrize("shape", [(0, 5), (5, 0), (0, 0)])
def test_an_empty_matrix_has_an_empty_payload(shape: tuple[int, int]) -> None:
    payload = cuda_ext.encode_minmax(torch.empty(shape), 3)
    assert payload.shape == (0,)
    assert cuda_ext.decode_minmax(payload, *shape, 3).shape == shape


def test_payload_layout() -> None:
    x = torch.tensor([[0.0, 10.0], [3.0, 10.0], [1.0, 10.0], [2.0, 10.0]])
    payload = cuda_ext.encode_minmax(x, 2)
    assert payload[:16].clone().view(torch.float32).tolist() == [0.0, 10.0, 3.0, 0.0]
    assert payload[16:].tolist() == [
        0b00_11_00_00,
        0b00_10_00_01,
    ]  # codes 0 0 3 0 1 0 2 0, the first ones lowest
