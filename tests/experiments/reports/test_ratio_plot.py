"""The figure of ratios: what it leaves out."""

import pytest
from comparison import result, small_config
from matplotlib.figure import Figure

from mqgrad.experiments.reports.cells import summarize
from mqgrad.experiments.reports.ratio_plot import plot_ratios


@pytest.mark.parametrize("scale", [1 / 128, 128.0])
def test_the_axis_reaches_the_fastest_and_the_slowest(scale: float, monkeypatch: pytest.MonkeyPatch) -> None:
    low, high = limits(monkeypatch, (scale, scale))
    assert low < scale < high


def test_an_interval_of_two_seeds_that_differ_does_not_widen_it_beyond_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    low, high = limits(monkeypatch, (1 / 8, 8.0))  # the interval reaches over eleven powers of ten each way
    assert 1 / 100 < low < high < 100


def limits(monkeypatch: pytest.MonkeyPatch, scales: tuple[float, float]) -> tuple[float, float]:
    """Of the axis where one of two seeds took ``scales[0]`` times as long as fp32, the other ``scales[1]``."""
    rows = [result("fixed:32", seed, 5 * [1.0]) for seed in (1, 2)]
    rows += [result("fixed:4", seed, 5 * [1.0], step=scale) for seed, scale in enumerate(scales, start=1)]
    figures: list[Figure] = []
    monkeypatch.setattr("mqgrad.experiments.reports.ratio_plot.png_bytes", figures.append)
    plot_ratios(summarize(small_config(), rows), ["fixed:32", "fixed:4"])
    return figures[0].axes[0].get_xlim()
