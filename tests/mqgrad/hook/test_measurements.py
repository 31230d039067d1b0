"""What one rank measures of a run, without a run around it."""

import pytest
import torch

from mqgrad.costs import Costs
from mqgrad.hook.measurements import KEPT_LOSSES, Measurements, check_loss


def test_a_loss_is_what_it_was_when_it_was_reported() -> None:
    """A script may add losses up in one tensor, which it sets to zero after each report."""
    measured, buffer = Measurements(), torch.zeros(())
    for loss in (1.0, 2.0, 6.0):
        measured.report(buffer.fill_(loss), Costs())
        buffer.zero_()
    measured.end_round(2)
    assert measured.take(1).losses == [3.0]


def test_on_the_cpu_losses_are_kept_as_numbers() -> None:
    """Small tensors that are kept may lie in the gaps that activations leave, which then no longer fit."""
    measured = Measurements()
    measured.report(torch.tensor(2.5), None)
    measured.end_round(interval=10)
    assert measured.losses == [2.5]
    assert type(measured.losses[0]) is float


def test_losses_of_a_round_are_not_added_up_in_16_bits() -> None:
    measured, loss = Measurements(), torch.tensor(2.3125, dtype=torch.bfloat16)
    for _ in range(9):
        measured.report(loss, Costs())
    measured.end_round(2)
    assert measured.take(1).losses == [2.3125]


def test_a_loss_is_one_number() -> None:
    """Told where it is reported: to find out where it is read would be to fail in the middle of a backward."""
    with pytest.raises(ValueError, match=r"shape \(4, 2\), torch.float32: give its mean"):
        check_loss(torch.ones(4, 2), 1)
    for wrong in (None, "a", 1j, 10**400, torch.tensor(1j)):
        with pytest.raises(ValueError, match=r"step\(\) of rank 1 was given"):
            check_loss(wrong, 1)
    for right in (torch.ones(1), torch.tensor(2), 1, float("nan")):
        check_loss(right, 1)


@pytest.mark.parametrize("interval", [2, KEPT_LOSSES + 5])
def test_losses_that_nobody_takes_are_not_kept_forever(interval: int) -> None:
    measured, kept = Measurements(), max(interval, KEPT_LOSSES)
    for number in range(kept + 7):
        measured.report(float(number), Costs())
        measured.end_round(interval)
    assert measured.losses == [float(number) for number in range(7, kept + 7)]
    assert len(measured.take(kept + 7).losses) == kept
    assert measured.losses == []


def test_losses_reported_while_another_thread_decides_are_of_the_next_interval() -> None:
    measured = Measurements()
    for loss in (1.0, 2.0, 3.0):
        measured.report(loss, Costs())
        measured.end_round(2)
    assert measured.take(2).losses == [1.0, 2.0]
    assert measured.take(1).losses == [3.0]


def test_an_iteration_of_unknown_seconds_counts_unless_it_is_a_whole_interval() -> None:
    """The first interval of one would have no seconds at all: it waits for the second iteration."""
    for interval, counted in ((1, [False, True]), (2, [True, True])):
        measured = Measurements()
        measured.report(1.0, None)
        first = measured.end_round(interval)
        measured.report(1.0, Costs(step_seconds=2.0))
        assert [first, measured.end_round(interval)] == counted
        assert measured.statistics.step_seconds == 2.0 * sum(counted)
