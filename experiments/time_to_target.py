"""When a run's held-out loss first reached a target, told from evaluations that are some time apart."""

import math
from collections.abc import Sequence
from typing import NamedTuple


class _Evaluation(NamedTuple):
    at: float
    loss: float


def first_reached(at: Sequence[float], losses: Sequence[float | None], target: float) -> float | None:
    """When the loss first was at or below the target; None if no evaluation shows it.

    Some systems are looked at after every second iteration, others four times as seldom: to count the whole way to
    an evaluation would favour the former. So ln(loss) is interpolated linearly between the first evaluation at or
    below the target and the one before; the loss itself, where it is not positive. If there is none before, or its
    loss is not known, the time is that of the evaluation.

    Args:
        at: seconds or iterations of each evaluation, increasing.
        losses: held-out, of each; None or not finite where not known.
        target: what the loss is to reach.
    """
    before = None
    for when, loss in zip(at, losses, strict=True):
        if loss is None or not math.isfinite(loss):
            before = None
        elif loss > target:
            before = _Evaluation(when, loss)
        else:
            return when if before is None else _between(before, _Evaluation(when, loss), target)
    return None


def _between(before: _Evaluation, after: _Evaluation, target: float) -> float:
    ratio = before.loss / after.loss if after.loss > 0 else math.inf
    if ratio < math.inf:
        share = math.log(before.loss / target) / math.log(ratio)
    else:
        share = (before.loss - target) / (before.loss - after.loss)
    return before.at + share * (after.at - before.at)
