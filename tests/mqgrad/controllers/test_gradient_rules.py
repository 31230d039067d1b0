"""Ramps, and rules that follow the gradient or the loss: each formula on statistics made by hand."""

import itertools
import math

import pytest
from intervals import losses, statistics, widths_of

import mqgrad
from mqgrad.codecs.quantization_noise import uniform_noise
from mqgrad.controllers import saving_ceiling_bits
from mqgrad.controllers.dq_sgd import scheduled_bits
from mqgrad.controllers.federated import bits_of


def test_linear_ramp_rises_at_a_constant_rate_and_stays() -> None:
    assert widths_of("linear-ramp:start=2,end=8,decisions=6", *[{}] * 8) == [2, 3, 4, 5, 6, 7, 8, 8, 8]
    assert widths_of("linear-ramp:start=2,end=8,decisions=6,widths=2+8", *[{}] * 4) == [2, 2, 2, 8, 8]


def test_budget_ramp_goes_by_the_seconds_that_are_spent() -> None:
    intervals = [{"step_seconds": seconds} for seconds in (0.2, 0.1, math.nan, 0.3, 0.9)]  # of ten steps
    assert widths_of("budget-ramp:start=4,end=1,budget_seconds=6", *intervals) == [4, 3, 3, 3, 1, 1]


@pytest.mark.parametrize("seed", range(5))
def test_random_ramp_is_monotone_one_width_at_a_time_and_a_function_of_its_seed(seed: int) -> None:
    spec = f"random-ramp:decisions=20,seed={seed}"
    widths = widths_of(spec, *[{}] * 25)
    assert widths == widths_of(spec, *[{}] * 25)
    assert {after - before for before, after in itertools.pairwise(widths)} == {0, 1}
    assert (widths[0], widths[20], widths[-1]) == (2, 8, 8)
    assert widths != widths_of(f"random-ramp:decisions=20,seed={seed + 5}", *[{}] * 25)


def test_dq_sgd_schedule_is_the_papers() -> None:
    # b = log2(s + 1) + 1 with s = 2^(B−1) − 1 levels for an average gradient.
    assert scheduled_bits(4, 0) == pytest.approx(4)
    assert scheduled_bits(4, 1) == pytest.approx(math.log2(14 + 1) + 1)
    assert scheduled_bits(4, -1) == pytest.approx(math.log2(3.5 + 1) + 1)
    assert scheduled_bits(4, -1e300) == pytest.approx(1, abs=1e-6)
    assert math.isfinite(scheduled_bits(8, 1e300))


def test_dq_sgd_follows_the_norm() -> None:
    # Peak energy × 4 is a norm × 2; with keep=0.5 the average moves half-way: a ratio of √2, s = 7√2, b = 4.4.
    assert widths_of("dq-sgd:keep=0.5", {}, {"peak_energy": 240.0}) == [4, 4, 4]
    # × 16 leaves a ratio of 2, s = 14, b = 4.9; ÷ 256 one of 1/4, s = 1.75, b = 2.5.
    assert widths_of("dq-sgd:keep=0.5", {}, {"peak_energy": 60 * 16}) == [4, 4, 5]
    assert widths_of("dq-sgd:keep=0.5", {}, {"peak_energy": 60 / 256}) == [4, 4, 2]


def test_dq_sgd_falls_with_the_norm_and_meets_the_budget() -> None:
    decay = [{"peak_energy": 60 * 10 ** (-2 * n / 100)} for n in range(100)]
    widths = widths_of("dq-sgd:budget=4", *decay)
    assert sum(widths) / len(widths) == pytest.approx(4, abs=0.2)
    assert sum(widths[25:50]) < sum(widths[:25])


@pytest.mark.parametrize("budget", [2.5, 3.3, 6.0])
def test_dq_sgd_spends_a_fractional_budget(budget: float) -> None:
    widths = widths_of(f"dq-sgd:budget={budget}", *[{}] * 200)
    assert sum(widths) / len(widths) == pytest.approx(budget, abs=0.2)


def test_dq_sgd_strongly_convex_schedule() -> None:
    """‖g_n‖ ∝ α^(n/2) is what theory expects, and gets one width; a norm that does not fall gets ever more bits."""
    spec = "dq-sgd:horizon=40,contraction=0.8,integral_gain=0"
    expected = widths_of(spec, *[{"peak_energy": 60 * 0.8**n} for n in range(40)])
    assert set(expected) == {4}
    constant = widths_of(spec, *[{}] * 40)
    assert constant == sorted(constant)
    assert constant[-1] > 4
    # Decision n has the weight α^((N−n)/2): from n = 1 to n = 3 that is 1/α = 4, with keep=0.5 a ratio of
    # 2^(2 − (0.25·0 + 0.25·1 + 0.5·2)) = 2^0.75, s = 7·1.68 and b = 4.68.
    assert widths_of("dq-sgd:horizon=3,contraction=0.25,keep=0.5,integral_gain=0", {}, {}, {})[-1] == 5


def test_dq_sgd_recovers_the_contraction_of_losses_that_fall_geometrically() -> None:
    controller = mqgrad.DQSGD(horizon=40)
    alphas = []
    for n in range(6):
        controller.decide(statistics(losses=(3 * 0.8**n,)))
        alphas.append(controller.alpha)
    assert alphas == pytest.approx([1.0] + [0.8] * 5)
    falling = [{"peak_energy": 60 * 0.7**n, "losses": (3 * 0.8**n,)} for n in range(40)]
    spec = "dq-sgd:horizon=40,integral_gain=0"
    assert widths_of(spec, *falling) == widths_of(spec + ",contraction=0.8", *falling)
    assert widths_of(spec, *falling) != widths_of(spec + ",contraction=1", *falling)


def test_dq_sgd_averages_the_contraction_and_keeps_it_at_most_one() -> None:
    controller = mqgrad.DQSGD(horizon=40, keep=0.5)
    for loss in (
        8.0,
        4.0,
        4.0,
        1.0,
    ):  # log2 ratios −1, 0, −2: a mean −1/2 of the first two, then (−1/2 − 2)/2
        controller.decide(statistics(losses=(loss,)))
    assert controller.alpha == pytest.approx(2**-1.25)
    before = controller.alpha
    for loss in (math.nan, 0.0, -1.0):  # teach nothing
        controller.decide(statistics(losses=(loss,)))
    controller.decide(statistics(losses=(1e-9,)))  # several decisions after the last usable one
    assert controller.alpha == before
    controller.decide(statistics(losses=(1e9,)))
    assert controller.alpha == 1.0
    controller.decide(statistics(losses=(1e-300,)))
    assert 0 < controller.alpha < 1


def test_dq_sgd_meets_an_error_constraint() -> None:
    # ‖ḡ‖² = 11, so e = 0.11; s = sqrt(60/0.66) = 9.5 levels need 4.4 bits, half of them 3.5, rounded up.
    spec = "dq-sgd:error=0.01"
    assert widths_of(spec, {}, {"peak_energy": 15.0}, {"peak_energy": 0.1}, {"peak_energy": 1e9}) == [
        4,
        5,
        4,
        2,
        8,
    ]
    assert uniform_noise(60.0, 5) <= 0.11 < uniform_noise(60.0, 4)
    assert widths_of(spec + ",horizon=9", {}, {"losses": (0.1,)}) == [
        4,
        5,
        5,
    ]  # the contraction is not estimated
    # A weight of 1/4 halves the levels that the first of two decisions gets.
    assert widths_of(spec + ",horizon=2,contraction=0.25", {}, {}) == [4, 4, 5]


def test_adaquantfl_formula() -> None:
    # s₀ = 1 at two bits; f₀/f = 1, 4, 9, 100 gives s = 1, 2, 3, 10 and b = 1 + ceil(log2(s + 1)).
    assert widths_of("adaquantfl", *losses(9.0, 9.0 / 4, 1.0, 0.09)) == [2, 2, 3, 3, 5]
    assert widths_of("adaquantfl:start=4", *losses(2.0, 0.5)) == [4, 4, 5]


def test_dadaquant_adds_a_bit_on_a_plateau_and_holds() -> None:
    assert widths_of("dadaquant:patience=2,keep=0", *losses(3, 2, 1, 0.5)) == [2, 2, 2, 2, 2]
    assert widths_of("dadaquant:patience=2,keep=0", *losses(*[1.0] * 7)) == [2, 2, 2, 3, 3, 4, 4, 5]


def test_feddq_counts_the_values_in_the_range() -> None:
    # Eight bits are 255 steps; a range 1/16 as large has 15.9 of them: ceil(log2(16.9)) = 5.
    energies = [{"peak_energy": 60.0 * ratio**2} for ratio in (1, 1 / 2, 1 / 16, 4)]
    assert widths_of("feddq", *energies) == [8, 8, 8, 5, 8]
    assert bits_of(127.5) == 8
    assert bits_of(255 / 16) == 5
    assert [bits_of(levels) for levels in (1, 3, 4, 255)] == [1, 2, 3, 8]


def test_accordion_spends_bits_where_the_norm_changes() -> None:
    # ‖ḡ‖² = S + V/W = 11; the accumulated norm halves when both figures fall to a quarter.
    still, halved = {}, {"gradient_signal": 0.25, "gradient_noise": 2.5}
    widths = widths_of("accordion:window=2", still, still, still, still, halved, halved, halved, halved)
    assert widths == [8, 8, 8, 8, 2, 2, 8, 8, 2]


# The ceiling of time-only schedules.


def test_saving_ceiling() -> None:
    assert saving_ceiling_bits([3.0] * 7) == pytest.approx(0)
    assert saving_ceiling_bits([1.0, 16.0]) == pytest.approx(0.5 * math.log2(8.5 / 4))
    decay = [10 ** (-2 * n / 10_000) for n in range(10_000)]
    assert saving_ceiling_bits(decay) == pytest.approx(0.55, abs=0.01)
    assert saving_ceiling_bits([1.0, 16.0], [3.0, 1.0]) == saving_ceiling_bits([1.0, 1.0, 16.0, 1.0])
    assert saving_ceiling_bits([1e300, 1e300]) == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize("norms_sq", [[], [1.0, 0.0], [1.0, math.nan], [math.inf]])
def test_saving_ceiling_needs_positive_norms(norms_sq: list[float]) -> None:
    with pytest.raises(ValueError, match="positive"):
        saving_ceiling_bits(norms_sq)
