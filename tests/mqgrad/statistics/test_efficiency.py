"""What is left of an iteration's progress, by formulas worked out by hand."""

import pytest
from intervals import statistics

from mqgrad.codecs.quantization_noise import Coding
from mqgrad.statistics.efficiency import UNPAID

# ‖ḡ‖² = 11, ‖g_r‖²/W = 10.5; 60/(6·1²) at 2 bits.
NOISE = 10.0


def test_linear_steps_lose_what_the_noise_is_of_the_gradient() -> None:
    assert statistics().efficiency(2) == pytest.approx(11 / (11 + NOISE))
    feedback = statistics(coding=Coding(feedback=True))
    assert feedback.efficiency(2) == pytest.approx(11 / (11 + UNPAID * NOISE))


@pytest.mark.parametrize("feedback", [True, False])
def test_normalized_steps_are_shorter_whether_noise_is_repaid_or_not(feedback: bool) -> None:
    seen = statistics(coding=Coding(feedback=feedback), update_exponent=0.0)
    assert seen.efficiency(2) == pytest.approx((11 / (11 + NOISE)) ** 0.5)


def test_between_the_two_it_is_their_geometric_mean() -> None:
    linear, normalized, between = (statistics(update_exponent=x).efficiency(2) for x in (1.0, 0.0, 0.25))
    assert between == pytest.approx(linear**0.25 * normalized**0.75)


def test_a_mean_that_is_coded_once_more_has_the_noise_of_that_too() -> None:
    once, twice = statistics(), statistics(coding=Coding(recoded=True))
    assert once.noise_of_mean(2) == pytest.approx(NOISE)
    assert twice.noise_of_mean(2) == pytest.approx(NOISE + NOISE / 10.5 * 11)
    assert twice.coding_noise(2) == once.coding_noise(2)
    assert twice.efficiency(2) < once.efficiency(2)


def test_no_noise_costs_nothing_and_noise_alone_everything() -> None:
    assert statistics().efficiency(32) == statistics().efficiency(16) == 1.0
    nothing = {"gradient_signal": 0.0, "gradient_noise": 0.0}
    assert statistics(**nothing).efficiency(2) == 0.0
    assert statistics(**nothing, peak_energy=0.0).efficiency(2) == 1.0
    assert statistics(**nothing, coding=Coding(recoded=True)).efficiency(2) == 0.0
