"""Intervals of a run through the compression hook: of one rank, and of all of them."""

import dataclasses
import time
from statistics import mean

import torch

import mqgrad
from mqgrad.costs import Totals
from mqgrad.statistics.interval import IntervalStatistics
from mqgrad.statistics.rank import RankStatistics
from mqgrad.widths import Width

from .base import RankInterval


class CompressedInterval:
    """One rank's interval after interval, from what its ``CompressionState`` measures."""

    def __init__(self, compression: mqgrad.CompressionState) -> None:
        self._compression = compression
        self._before = Totals()
        self._losses: list[float] = []

    def begin(self, iterations: int, bits: Width | None) -> None:
        """Announce some iterations. ``bits`` is their width where the caller decides, else None."""
        if bits is not None:
            self._compression.begin_interval(iterations // self._compression.period, bits)
        self._before = dataclasses.replace(self._compression.totals)
        self._losses = []
        self._compression.mark()

    def step(self, loss: torch.Tensor) -> None:
        """Report an iteration's loss, after ``optimizer.step()``."""
        self._compression.step(loss)
        self._losses.append(float(loss.detach()))

    def end(self) -> RankInterval:
        """What the iterations since :meth:`begin` cost and showed."""
        decides = self._compression.controller is not None
        drained = self._drain()
        return RankInterval(
            statistics=self._statistics(drained),
            bits=self._compression.bits,
            iteration=self._compression.totals.iterations,
            bit_iterations=self._compression.totals.bit_iterations - self._before.bit_iterations
            if decides
            else None,
            coding=self._compression.coding,
            period=1 if decides else self._compression.period,
            figures=self._figures(),
            decided_on=self._compression.last_statistics,
        )

    def _drain(self) -> float:
        """Wait for the decision that follows from the last iteration, if one does; else it is chance whether it is
        seen. Returns seconds. In training it would be made during the next forward, here it is waited for."""
        start = time.perf_counter()
        self._compression.drain()
        return time.perf_counter() - start

    def _figures(self) -> dict[str, float]:
        figures = self._compression.compressor.figures()
        chosen = self._compression.period_rule is not None
        return {**figures, "period": self._compression.period} if chosen else figures

    def _statistics(self, drained: float) -> RankStatistics:
        if self._compression.controller is None:
            return self._compression.take_statistics()
        # What the state collects, gradient figures included, belongs to the controller.
        costs = dataclasses.asdict(self._compression.totals.since(self._before))
        costs["step_seconds"] += drained  # or decisions would be free where a run is looked at
        return RankStatistics(losses=list(self._losses), **costs)


def combine(intervals: list[RankInterval]) -> IntervalStatistics:
    """The ranks' parts of an interval, by rank, as one."""
    reported = max(len(interval.statistics.losses) for interval in intervals)
    statistics = IntervalStatistics.from_rows(
        torch.stack([interval.statistics.to_row(reported) for interval in intervals]),
        iteration=intervals[0].iteration,
        bits=intervals[0].bits,
        coding=intervals[0].coding,
        period=intervals[0].period,
        bit_iterations=intervals[0].bit_iterations,
    )
    statistics = dataclasses.replace(statistics, figures=_means([interval.figures for interval in intervals]))
    seen = intervals[0].decided_on
    return statistics if seen is None else statistics.with_gradient_of(seen)


def _means(figures: list[dict[str, float]]) -> dict[str, float]:
    """Mean over the ranks that report a figure."""
    names = dict.fromkeys(name for rank in figures for name in rank)
    return {name: mean(rank[name] for rank in figures if name in rank) for name in names}
