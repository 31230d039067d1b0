"""What one rank measures of a run, without a run around it."""

import pytest
import torch

from mqgrad.costs import Costs
from mqgrad.measurements import KEPT_LOSSES, Measurements


def test_a_loss_is_what_it_was_when_it_was_reported() -> None:
    """A script may add losses up in one tensor, which it sets to zero after each report."""
    measured, buffer = Measurements(), torch.zeros(())
    for loss in (1.0, 2.0, 6.0):
        measured.report(buffer.fill_(loss), Costs())
        buffer.zero_()
    measured.end_round(2)
    assert measured.take().losses == [3.0]


def test_a_loss_is_one_number() -> None:
    """Told where it is reported: to find out where it is read would be to fail in the middle of a backward."""
    with pytest.raises(ValueError, match=r"shape \(4, 2\): give its mean"):
        Measurements().report(torch.ones(4, 2), Costs())
    Measurements().report(torch.ones(1), Costs())


@pytest.mark.parametrize("interval", [2, KEPT_LOSSES + 5])
def test_losses_that_nobody_takes_are_not_kept_forever(interval: int) -> None:
    """But counted: that all ranks have reported as many is checked, and tells which iteration is measured."""
    measured, kept = Measurements(), max(interval, KEPT_LOSSES)
    for number in range(kept + 7):
        measured.report(float(number), Costs())
        measured.end_round(interval)
    assert measured.losses == [float(number) for number in range(7, kept + 7)]
    assert measured.reported == kept + 7
    other = Measurements()
    other.load_state_dict(measured.state_dict())
    assert other.reported == kept + 7
    assert len(measured.take().losses) == kept
    assert (measured.losses, measured.reported) == ([], 0)
