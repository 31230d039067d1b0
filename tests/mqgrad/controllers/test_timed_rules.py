"""Rules that weigh seconds against noise: each formula on statistics made by hand."""

import dataclasses
import math

import pytest
from intervals import BASE, statistics, widths_of

import mqgrad
from mqgrad.codecs.quantization_noise import Coding
from mqgrad.controllers import make_controller
from mqgrad.controllers.goodput import relative_goodput, within_reach
from mqgrad.controllers.gravac import squared_cosine
from mqgrad.statistics.interval import ParameterStatistics, Trial
from mqgrad.statistics.step_times import StepTimes
from mqgrad.widths import TIMED_WIDTHS


def test_goodput_maximises_efficiency_per_second() -> None:
    # 11/(11 + 60/(6s²)) ÷ (0.1 + 0.0125·b): 4.19 at 2 bits, 6.61 at 3, 6.55 at 4, 5.71 at 6.
    times = StepTimes()
    known = {
        "mean": [0.1, 0.0125, 0.0],
        "covariance": [0.0] * 9,
        "bits": [4],
        "period": [1],
        "computed": [0.0],
        "relative_bytes": [1.0],
    }
    times.load_state_dict(known)
    assert [relative_goodput(BASE, times, bits) for bits in (2, 3, 4, 6)] == pytest.approx(
        [
            11 / 21 / 0.125,
            11 / (11 + 10 / 9) / 0.1375,
            11 / (11 + 10 / 49) / 0.15,
            11 / (11 + 10 / 961) / 0.175,
        ]
    )


def test_goodput_knows_that_rotated_codes_err_less() -> None:
    slow = {"step_seconds": 10.0}
    assert widths_of("goodput:start=4", slow) == [4, 3]
    assert widths_of("goodput:start=4", slow | {"coding": Coding(rotated=(1, 2, 3))}) == [4, 1]


@pytest.mark.parametrize("spec", ["goodput", "goodput:start=3"])
def test_goodput_takes_few_bits_on_a_slow_link_and_many_on_a_fast_one(spec: str) -> None:
    def last_width(seconds_per_bit: float) -> int:
        controller = make_controller(spec)
        bits = controller.initial_bits
        for _ in range(20):
            bits = controller.decide(statistics(bits=bits, step_seconds=0.1 + seconds_per_bit * bits))
        return bits

    assert [last_width(seconds) for seconds in (1.0, 1e-2)] == [3, 4]
    assert last_width(1e-5) >= 8  # 8 are best, by a quarter of a percent
    assert last_width(0.0) >= 16


def test_goodput_decides_when_the_signal_is_lost_in_the_noise() -> None:
    assert widths_of("goodput:start=4", {"gradient_signal": 0.0, "step_seconds": 10.0}) == [4, 3]
    nothing = {"gradient_signal": 0.0, "gradient_noise": 0.0, "peak_energy": 0.0}
    assert widths_of("goodput:start=4", nothing) == [4, 4]


def test_goodput_smooths_the_gradient_and_not_the_link() -> None:
    controller = mqgrad.Goodput(keep=0.9)
    controller.decide(BASE)
    controller.decide(statistics(gradient_signal=11.0))
    assert controller.state_dict()["gradient"]["gradient_signal"] == pytest.approx(2.0)
    assert controller.decide(statistics(bits=8, step_seconds=100.0)) <= 3


def test_goodput_goes_to_four_times_the_bits_at_most() -> None:
    """From a few iterations, whatever they seem to say of many bits."""
    assert within_reach(TIMED_WIDTHS, 1) == (1, 2, 3, 4)
    assert within_reach(TIMED_WIDTHS, 3) == (1, 2, 3, 4, 6, 8)
    assert within_reach((1, 8, 32), 1) == (1, 8)
    assert within_reach((1, 8, 32), 32) == (1, 8, 32)
    free = {"step_seconds": 0.1, "peak_energy": 6000.0}
    assert widths_of("goodput:start=2", free)[-1] == 8


def test_goodput_takes_fewer_bits_where_noise_is_repaid_and_more_where_adam_divides_by_it() -> None:
    slow = {"step_seconds": 0.18, "peak_energy": 200.0}
    repaid, linear = Coding(rotated=(1, 2, 3), feedback=True), Coding(rotated=(1, 2, 3))

    def chosen(coding: Coding, update_exponent: float) -> int:
        return widths_of("goodput", slow | {"coding": coding, "update_exponent": update_exponent})[-1]

    assert chosen(repaid, 1.0) == 1
    assert chosen(repaid, 0.0) == chosen(linear, 0.0) > 1
    assert chosen(linear, 1.0) > 1


def test_squared_cosine() -> None:
    # One rank's gradient has ‖g‖² = 1 + 2·10 and noise 2·60/(6s²).
    assert squared_cosine(BASE, 2) == pytest.approx(21 / 41)
    assert squared_cosine(BASE, 3) == pytest.approx(21 / (21 + 20 / 9))
    assert squared_cosine(BASE, 32) == 1.0
    assert squared_cosine(statistics(gradient_signal=0.0, gradient_noise=0.0, peak_energy=0.0), 2) == 1.0


def test_gravac_searches_falls_back_and_freezes_the_best() -> None:
    """δ is 1.000, 0.999, 0.981, 0.904, 0.512 at 8, 6, 4, 3, 2 bits.

    The candidates 4 and 3 are good enough, 2 and 1 are not and leave the safe 6; 3 has the best δ·throughput.
    """
    controller = make_controller("gravac:window=1,keep=0")
    widths = [controller.initial_bits]
    for _ in range(8):
        seconds = 0.05 + 0.025 * widths[-1]
        widths.append(controller.decide(statistics(bits=widths[-1], step_seconds=seconds)))
    assert widths == [8, 4, 3, 6, 6, 3, 3, 3, 3]


def test_gravac_goes_by_the_measured_gain_where_widths_were_tried() -> None:
    """By the law every width is exact. Tried: ⟨g, Q⟩ = (4 + 2 − 3)/2, so cos² = 1.5²/(4·2) = 0.28 at 6 bits."""
    good, bad = Trial(error_sq=0.0, norm_sq=2.0), Trial(error_sq=1.5, norm_sq=1.0)
    halves = ParameterStatistics(
        numel=9, norm_sq=2.0, peak_energy=0.0, trials=tuple(bad if b == 6 else good for b in TIMED_WIDTHS)
    )
    controller = make_controller("gravac:window=1,keep=0")
    assert controller.wants_parameters
    assert controller.trial_widths == TIMED_WIDTHS
    interval = dataclasses.replace(BASE, peak_energy=0.0, parameters=(halves, halves), bits=8)
    controller.decide(interval)
    assert dict(zip(TIMED_WIDTHS, controller.gains, strict=True)) == {
        bits: pytest.approx(0.28125 if bits == 6 else 1.0) for bits in TIMED_WIDTHS
    }
    zero = dataclasses.replace(halves, norm_sq=0.0, trials=(Trial(0.0, 0.0),) * len(TIMED_WIDTHS))
    controller.decide(dataclasses.replace(interval, parameters=(zero,)))
    assert controller.gains == [1.0] * len(TIMED_WIDTHS)


@pytest.mark.parametrize("spec", ["gravac:window=1", "l-greco"])
def test_a_trial_that_overflowed_teaches_nothing(spec: str) -> None:
    controller = make_controller(spec)
    good = Trial(error_sq=1.0, norm_sq=2.0)
    parameter = ParameterStatistics(
        numel=9, norm_sq=2.0, peak_energy=1.0, trials=(good,) * len(controller.trial_widths)
    )
    controller.decide(dataclasses.replace(BASE, parameters=(parameter,), bits=8))
    before = controller.state_dict()
    trials = (Trial(math.inf, math.inf), *parameter.trials[1:])
    overflowed = dataclasses.replace(parameter, trials=trials)
    controller.decide(dataclasses.replace(BASE, parameters=(overflowed,), bits=8))
    assert controller.state_dict() == before


def test_gravac_takes_a_candidate_for_safe_only_where_the_gains_are_alike_either_way() -> None:
    """|δ_safe − δ_candidate|/δ_safe ≤ ω: a candidate whose measured gain is far above the safe width's is not."""

    def safe_after_a_window(gain_of_8: float, gain_of_6: float) -> float:
        controller = make_controller("gravac:window=1,keep=0,tolerance=0.1")
        gains = {8: gain_of_8, 6: gain_of_6}
        # ⟨g, Q⟩ = (1 + 1 − ‖Q − g‖²)/2 = √δ at ‖g‖² = ‖Q‖² = 1
        trials = tuple(Trial(2 - 2 * gains.get(b, 1.0) ** 0.5, 1.0) for b in TIMED_WIDTHS)
        parameter = ParameterStatistics(numel=9, norm_sq=1.0, peak_energy=0.0, trials=trials)
        controller.decide(dataclasses.replace(BASE, parameters=(parameter,), bits=8))
        return controller.safe

    assert [safe_after_a_window(0.8, other) for other in (0.7, 0.75, 0.85, 0.9)] == [8, 6, 6, 8]


def test_gravac_sends_dense_when_nothing_else_is_good_enough() -> None:
    assert widths_of("gravac", {"peak_energy": 1e7}) == [8, 32]


def test_gravac_does_not_freeze_what_it_falls_back_to() -> None:
    """Dense while no gain is known to be good, all the time in which it searches; then the best of the others."""
    bad, good = (Trial(2 - 2 * gain**0.5, 1.0) for gain in (0.1, 0.9))
    controller = make_controller("gravac:window=1,keep=0")
    widths = []
    for trial in [bad] * len(TIMED_WIDTHS) + [good] * 4:
        trials = tuple(trial for _ in TIMED_WIDTHS)
        parameter = ParameterStatistics(numel=9, norm_sq=1.0, peak_energy=0.0, trials=trials)
        bits = widths[-1] if widths else controller.initial_bits
        widths.append(controller.decide(dataclasses.replace(BASE, parameters=(parameter,), bits=bits)))
    assert widths[1 : len(TIMED_WIDTHS)] == [32] * (len(TIMED_WIDTHS) - 1)
    assert max(widths[-3:]) < 32
