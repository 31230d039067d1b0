"""What one rank measures of a run, without a run around it."""

import torch

from mqgrad.costs import Costs
from mqgrad.measurements import Measurements


def test_a_loss_is_what_it_was_when_it_was_reported() -> None:
    """A script may add losses up in one tensor, which it sets to zero after each report."""
    measured, buffer = Measurements(), torch.zeros(())
    for loss in (1.0, 2.0, 6.0):
        measured.report(buffer.fill_(loss), Costs())
        buffer.zero_()
    measured.end_round(keep_untimed=True)
    assert measured.take().losses == [3.0]
