"""DQ-SGD: bits that follow the gradient's norm, under a budget."""

import dataclasses
import math

from ..checks import check_count, check_decay, check_positive, check_range, check_share
from ..statistics.interval import IntervalStatistics
from ..statistics.moving_average import ewma
from ..widths import Width
from .rule import WidthRule, usable

_LOG_RATIO_LIMIT = 30.0  # no width is further away than that, and 2**30 does not overflow


@dataclasses.dataclass(kw_only=True, slots=True)
class DQSGD(WidthRule):
    """Bits that equalise what each iteration's quantization adds to the convergence bound (Yan et al. 2021).

    The paper's schedules, for N decisions:

    - non-convex: b_n = log2(t·‖g_n‖_p + 1) + 1;
    - strongly convex, with ``horizon``: b_n = log2(k·α^((N−n)/2)·‖g_n‖_p + 1) + 1.

    p = ∞ in buckets, the case in which the noise law d/(6s²)·‖g‖² holds: ‖g_n‖ is the root of ``peak_energy``, the
    same number on every rank.

    How t, k and α are estimated is open in the source. Derived for this project:

    - With u = log2(‖g_n‖·α^((N−n)/2)), t and k are such that a gradient of average u gets the levels of the budget,
      s = (2^(B−1) − 1)·2^(u − EWMA(u)), u of earlier decisions with the α of now; an integral term repays the bits
      that were under- or overspent.
    - log α is an EWMA of log f_n − log f_{n−1}, f the mean loss of an interval over all ranks, and α at most 1.

    With ``error`` instead of a budget, nothing is estimated (α is 1 unless ``contraction`` is given): each decision
    may add the same error e to the bound, so α^(N−n)·‖g_n‖²/(6s²) = e gives s, rounded up to a width. e is a share of
    the first ‖ḡ‖² that was measured.

    Norms are compared with earlier ones: a loss scaler that changes its scale changes them.
    """

    budget: float = 4.0
    """B, the mean bits per element to spend over the run."""
    error: float | None = None
    """Noise that quantization may add per decision, as a share of the first ‖ḡ‖²; takes the place of ``budget``."""
    keep: float = 0.98
    """Share of the old value in the averages of u and log α, per decision."""
    integral_gain: float = 0.05
    """Bits added per bit of unspent budget and decision."""
    horizon: int | None = None
    """N, decisions in the whole run; None is the non-convex schedule."""
    contraction: float | None = None
    """α of the strongly convex schedule, per decision: the factor by which the bound shrinks; None: estimated."""
    mean_log_norm: float | None = dataclasses.field(init=False, default=None)
    """State: EWMA of log2‖g_n‖."""
    mean_remaining: float | None = dataclasses.field(init=False, default=None)
    """State: EWMA of N − n."""
    log_loss: float | None = dataclasses.field(init=False, default=None)
    """State: log2 f_n."""
    log_contraction: float | None = dataclasses.field(init=False, default=None)
    """State: EWMA of log2 f_n − log2 f_{n−1}, a plain mean at first."""
    contractions: int = dataclasses.field(init=False, default=0)
    """State: values in that mean."""
    correction: float = dataclasses.field(init=False, default=0.0)
    """State: bits that the integral term adds; never more than the span of the widths, either way."""
    allowed: float | None = dataclasses.field(init=False, default=None)
    """State: e, in the unit of ‖ḡ‖²; None until a gradient has been measured."""
    made: int = dataclasses.field(init=False, default=0)
    """State: decisions made."""

    def prepare(self) -> None:
        check_range(max(self.widths[0], 1), self.widths[-1], budget=self.budget)
        if self.error is not None:
            check_positive(error=self.error)
        check_decay(keep=self.keep)
        check_range(0.0, 1.0, integral_gain=self.integral_gain)
        if self.contraction is not None:
            check_share(contraction=self.contraction)
        if self.horizon is not None:
            check_count(horizon=self.horizon)
        elif self.contraction not in (None, 1):
            raise ValueError(f"contraction {self.contraction!r} needs a horizon, the decisions in the run")

    def wanted_bits(self, statistics: IntervalStatistics) -> float | None:
        """The schedule at this decision plus the correction toward the budget, or the width within the error."""
        norm_sq = statistics.mean_norm_sq
        if not usable(statistics.peak_energy, norm_sq) or statistics.peak_energy * norm_sq == 0:
            return None
        self.made += 1
        self._learn_contraction(statistics.loss)
        log_norm, remaining = 0.5 * math.log2(statistics.peak_energy), self._remaining()
        if self.error is not None:
            self.allowed = self.allowed or self.error * norm_sq
            log_levels = log_norm + self._log_weight(remaining) - 0.5 * math.log2(6 * self.allowed)
            return self._width_within(log_levels)
        self.mean_log_norm = ewma(self.mean_log_norm, log_norm, self.keep)
        self.mean_remaining = ewma(self.mean_remaining, remaining, self.keep)
        self._integrate(self.budget - statistics.bits)
        log_ratio = log_norm - self.mean_log_norm + self._log_weight(remaining - self.mean_remaining)
        return scheduled_bits(self.budget, log_ratio) + self.correction

    @property
    def alpha(self) -> float:
        """α as given or as estimated, in (0, 1]; 1 before there is an estimate."""
        if self.contraction is not None:
            return self.contraction
        return 2.0 ** min(max(self.log_contraction or 0.0, -_LOG_RATIO_LIMIT), 0.0)

    def _learn_contraction(self, loss: float) -> None:
        if self.horizon is None or self.contraction is not None or self.error is not None:
            return
        before, self.log_loss = self.log_loss, math.log2(loss) if usable(loss) and loss > 0 else None
        if before is not None and self.log_loss is not None:
            self.contractions += 1
            # A plain mean at first, or the first, steep one would weigh most for long.
            keep = min(self.keep, 1 - 1 / self.contractions)
            self.log_contraction = ewma(self.log_contraction, self.log_loss - before, keep)

    def _width_within(self, log_levels: float) -> Width:
        wanted = bits_of_levels(2.0 ** min(log_levels, _LOG_RATIO_LIMIT))
        return next((width for width in self.widths if width >= wanted), self.widths[-1])

    def _remaining(self) -> int:
        """N − n."""
        return 0 if self.horizon is None else max(self.horizon - self.made, 0)

    def _log_weight(self, decisions: float) -> float:
        """log2 α^(decisions/2)."""
        return 0.5 * decisions * math.log2(self.alpha)

    def _integrate(self, unspent_bits: float) -> None:
        # Without a limit, bits that no width can repay would be owed for ever.
        span = self.widths[-1] - self.widths[0]
        self.correction = min(max(self.correction + self.integral_gain * unspent_bits, -span), span)


def scheduled_bits(budget: float, log_ratio: float) -> float:
    """DQ-SGD's b = log2(s + 1) + 1, with s = (2^(budget − 1) − 1)·2^log_ratio levels.

    Args:
        budget: the width of an average gradient.
        log_ratio: log2 of this gradient's norm over the average one's.
    """
    log_ratio = min(max(log_ratio, -_LOG_RATIO_LIMIT), _LOG_RATIO_LIMIT)
    return bits_of_levels((2 ** (budget - 1) - 1) * 2**log_ratio)


def bits_of_levels(levels: float) -> float:
    """log2(s + 1) + 1: a sign, and s levels beside zero."""
    return math.log2(levels + 1) + 1
