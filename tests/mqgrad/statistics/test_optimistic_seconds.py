"""How long a width is expected to take, as seen from the one in use."""

import numpy as np
import pytest

from mqgrad.statistics.step_times import optimistic_seconds


def seen_from(bits: object, in_use: object, *, deviation: float = 0.0, coding: float = 0.0) -> np.ndarray:
    """With fixed seconds of 0.1 and 0.01 for a bit."""
    figures = (bits, in_use, 0.1, 0.01, deviation, coding)
    return optimistic_seconds(*(np.array(figure, dtype=np.float64) for figure in figures))


@pytest.mark.parametrize(
    ("bits", "in_use", "deviation", "coding", "expected"),
    [
        (4, 4, 0.001, 0.02, 0.14),
        (1, 4, 0.001, 0.02, 0.11),  # fewer bits: no optimism
        (8, 4, 0.001, 0.02, 0.14 + 4 * 0.009),  # more: a deviation less a bit
        (8, 4, 0.5, 0.02, 0.14 + 4 * 0.002),  # but at least a fifth
        (32, 4, 0.0, 0.02, 0.42 - 0.02),  # without coding
        (32, 32, 0.0, 0.02, 0.42),
        (8, 32, 0.5, 0.02, 0.18 + 0.02),  # with it
    ],
)
def test_how_a_width_is_seen_from_another(
    bits: float, in_use: float, deviation: float, coding: float, expected: float
) -> None:
    assert float(seen_from(bits, in_use, deviation=deviation, coding=coding)) == pytest.approx(expected)


def test_widths_may_be_seen_from_many_at_once() -> None:
    widths, in_use = np.array([[1.0], [8.0], [32.0]]), np.array([4.0, 32.0])
    figures = {"deviation": 0.002, "coding": 0.03}
    expected = [[float(seen_from(bits, used, **figures)) for used in in_use] for bits in widths[:, 0]]
    np.testing.assert_allclose(seen_from(widths, in_use, **figures), expected)
