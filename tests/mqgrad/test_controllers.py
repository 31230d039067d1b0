"""Controllers: each rule's formula on statistics made by hand, its state, the registry, and real ranks."""

import dataclasses
import itertools
import json
import math

import models
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from intervals import BASE
from ranks import run_ranks

import mqgrad
from mqgrad.controllers import controller_names, make_controller, saving_ceiling_bits
from mqgrad.controllers.dq_sgd import scheduled_bits
from mqgrad.controllers.federated import bits_of
from mqgrad.controllers.goodput import relative_goodput
from mqgrad.controllers.gravac import squared_cosine
from mqgrad.controllers.rule import nearest
from mqgrad.statistics import IntervalStatistics

SPECS = (
    "accordion:window=2",
    "adaquantfl",
    "dadaquant:patience=1",
    "dq-sgd:budget=3.5",
    "dq-sgd:error=0.02",
    "feddq",
    "fixed:4",
    "goodput",
    "gravac:window=1",
    "linear-ramp:decisions=5",
    "random-ramp:decisions=6,seed=1",
)
RULES = tuple(spec for spec in SPECS if not spec.startswith("fixed"))


def widths_of(spec: str, *intervals: dict[str, object]) -> list[int]:
    """Widths from the start on; each interval is run at the width decided before it."""
    controller = make_controller(spec)
    widths = [controller.initial_bits]
    for changes in intervals:
        widths.append(controller.decide(statistics(bits=widths[-1], **changes)))
    return widths


def statistics(**changes: object) -> IntervalStatistics:
    return dataclasses.replace(BASE, **changes)  # type: ignore[arg-type]


def losses(*values: float) -> list[dict[str, object]]:
    return [{"losses": (value,)} for value in values]


# The rules, one by one.


def test_linear_ramp_rises_at_a_constant_rate_and_stays() -> None:
    assert widths_of("linear-ramp:start=2,end=8,decisions=6", *[{}] * 8) == [2, 3, 4, 5, 6, 7, 8, 8, 8]
    assert widths_of("linear-ramp:start=2,end=8,decisions=6,widths=2+8", *[{}] * 4) == [2, 2, 2, 8, 8]


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
    assert statistics().quantization_noise(5) <= 0.11 < statistics().quantization_noise(4)
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


def test_goodput_maximises_efficiency_per_second() -> None:
    # 1/(1 + 10 + 60/(6s²)) ÷ (0.1 + 0.0125·b): 0.381 at 2 bits, 0.601 at 3, 0.595 at 4, 0.519 at 6.
    assert [relative_goodput(BASE, bits) for bits in (2, 3, 4, 6)] == pytest.approx(
        [1 / 21 / 0.125, 1 / (11 + 10 / 9) / 0.1375, 1 / (11 + 10 / 49) / 0.15, 1 / (11 + 10 / 961) / 0.175]
    )
    assert widths_of("goodput:start=4", {}) == [4, 3]
    # The same 0.05 s at 8 bits are half as long per bit: 0.695 at 3 bits, 0.714 at 4, 0.661 at 6.
    assert widths_of("goodput", {}) == [8, 4]


@pytest.mark.parametrize("spec", ["goodput", "goodput:start=3"])
def test_goodput_takes_few_bits_on_a_slow_link_and_many_on_a_fast_one(spec: str) -> None:
    def last_width(seconds_per_bit: float) -> int:
        controller = make_controller(spec)
        bits = controller.initial_bits
        for _ in range(20):
            bits = controller.decide(statistics(bits=bits, wire_seconds=seconds_per_bit * bits))
        return bits

    assert [last_width(seconds) for seconds in (1.0, 1e-2, 1e-5)] == [3, 4, 8]
    assert last_width(0.0) >= 16


def test_goodput_decides_when_the_signal_is_lost_in_the_noise() -> None:
    assert widths_of("goodput:start=4", {"gradient_signal": 0.0}) == [4, 3]
    nothing = {"gradient_signal": 0.0, "gradient_noise": 0.0, "peak_energy": 0.0}
    assert widths_of("goodput:start=4", nothing) == [4, 4]


def test_goodput_smooths_the_gradient_and_not_the_link() -> None:
    controller = mqgrad.Goodput(keep=0.9)
    controller.decide(BASE)
    controller.decide(statistics(gradient_signal=11.0))
    assert controller.signal == pytest.approx(2.0)
    assert controller.decide(statistics(bits=8, wire_seconds=100.0)) <= 3


def test_predicted_wire_seconds_scale_with_the_width_but_for_the_fixed_part() -> None:
    slow = dataclasses.replace(BASE, wire_seconds=0.5, fixed_wire_seconds=0.1)
    assert slow.predicted_wire_seconds(2 * BASE.bits) == pytest.approx(0.9)
    assert BASE.predicted_wire_seconds(32) == pytest.approx(0.4)
    assert BASE.predicted_wire_seconds(BASE.bits) == BASE.wire_seconds


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


def test_gravac_sends_dense_when_nothing_else_is_good_enough() -> None:
    assert widths_of("gravac", {"peak_energy": 1e7}) == [8, 32]


# The ceiling of time-only schedules.


def test_saving_ceiling() -> None:
    assert saving_ceiling_bits([3.0] * 7) == pytest.approx(0)
    assert saving_ceiling_bits([1.0, 16.0]) == pytest.approx(0.5 * math.log2(8.5 / 4))
    decay = [10 ** (-2 * n / 10_000) for n in range(10_000)]
    assert saving_ceiling_bits(decay) == pytest.approx(0.55, abs=0.01)
    assert saving_ceiling_bits([1e300, 1e300]) == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize("norms_sq", [[], [1.0, 0.0], [1.0, math.nan], [math.inf]])
def test_saving_ceiling_needs_positive_norms(norms_sq: list[float]) -> None:
    with pytest.raises(ValueError, match="positive"):
        saving_ceiling_bits(norms_sq)


# What holds for all of them.


def some_run(length: int) -> list[IntervalStatistics]:
    return [
        statistics(
            losses=(3.0 * 0.8**n,),
            peak_energy=60 * 0.7**n,
            gradient_signal=0.7**n,
            gradient_noise=9 * 0.9**n,
            wire_seconds=0.05 * (1 + n % 3),
            step_seconds=0.1 + 0.01 * n,
        )
        for n in range(length)
    ]


@pytest.mark.parametrize("spec", SPECS)
def test_a_restored_controller_continues_identically(spec: str) -> None:
    run = some_run(16)
    straight, first, second = make_controller(spec), make_controller(spec), make_controller(spec)
    expected = [straight.decide(interval) for interval in run]
    before = [first.decide(interval) for interval in run[:7]]
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert second.state_dict() == first.state_dict()
    assert before + [second.decide(interval) for interval in run[7:]] == expected


@pytest.mark.parametrize("spec", RULES)
def test_a_saved_state_does_not_change_afterwards(spec: str) -> None:
    controller = make_controller(spec)
    for interval in some_run(4):
        controller.decide(interval)
    saved = controller.state_dict()
    before = json.dumps(saved)
    controller.decide(BASE)
    assert json.dumps(saved) == before


@pytest.mark.parametrize("spec", RULES)
def test_the_state_of_something_else_is_refused(spec: str) -> None:
    controller = make_controller(spec)
    with pytest.raises(ValueError, match=f"{type(controller).__name__} needs"):
        controller.load_state_dict({"bits": 4})
    with pytest.raises(ValueError, match="saved width: bit width 9"):
        controller.load_state_dict(controller.state_dict() | {"bits": 9})


FIGURES = ("step_seconds", "compute_seconds", "wire_seconds")
GRADIENT_FIGURES = ("gradient_signal", "gradient_noise", "peak_energy")


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("spec", [spec for spec in RULES if "ramp" not in spec])
def test_an_interval_that_overflowed_keeps_the_width_and_the_state(spec: str, bad: float) -> None:
    controller = make_controller(spec)
    for interval in some_run(5):
        width = controller.decide(interval)
    before = controller.state_dict()
    broken = dict.fromkeys((*FIGURES, *GRADIENT_FIGURES), bad)
    assert controller.decide(statistics(losses=(bad,), **broken)) == width
    assert controller.state_dict() == before


any_float = st.floats(allow_nan=True, allow_infinity=True)


@pytest.mark.parametrize("spec", RULES)
@given(
    intervals=st.lists(
        st.builds(
            lambda loss, bits, values: statistics(losses=(loss,), bits=bits, **values),
            loss=any_float,
            bits=st.sampled_from(mqgrad.WIDTHS),
            values=st.fixed_dictionaries(dict.fromkeys((*FIGURES, *GRADIENT_FIGURES), any_float)),
        ),
        min_size=1,
        max_size=5,
    )
)
def test_whatever_is_measured_the_width_is_allowed_and_the_state_finite(
    spec: str, intervals: list[IntervalStatistics]
) -> None:
    controller = make_controller(spec)
    for interval in intervals:
        assert controller.decide(interval) in controller.widths
        json.dumps(controller.state_dict(), allow_nan=False)


@pytest.mark.parametrize("spec", RULES)
def test_widths_are_restricted_to_those_given(spec: str) -> None:
    name, _, arguments = spec.partition(":")
    spec = f"{name}:{arguments},widths=2+4+8,start=" + ("8" if name in ("accordion", "feddq") else "2")
    controller = make_controller(spec.replace("budget=3.5", "budget=3"))
    assert {controller.decide(interval) for interval in some_run(20)} <= {2, 4, 8}


def test_nearest_width() -> None:
    assert [nearest(value, (2, 4, 8)) for value in (-9, 2.9, 3, 5.9, 6, 99)] == [2, 2, 4, 4, 8, 8]


# By name.


def test_every_name_is_tested_here() -> None:
    assert {spec.partition(":")[0] for spec in SPECS} <= set(controller_names())


def test_arguments_reach_the_controller() -> None:
    assert make_controller("fixed:4") == mqgrad.FixedBits(4)
    assert make_controller("fixed:4,interval=5") == mqgrad.FixedBits(4, interval=5)
    spec = "dq-sgd:budget=3,widths=2+3+4,horizon=9,contraction=0.5,interval=7"
    expected = mqgrad.DQSGD(budget=3.0, widths=(2, 3, 4), horizon=9, contraction=0.5, interval=7)
    assert make_controller(spec) == expected
    assert make_controller("goodput") == mqgrad.Goodput()


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("godput", "unknown controller 'godput'; known: .*dq-sgd.*fixed.*goodput.*random-ramp"),
        ("fixed", "'bits' is missing"),
        ("fixed:x", "bits 'x' is not a number of bits, such as 4 or 1/4"),
        ("fixed:9", "'fixed:9': bit width 9"),
        ("fixed:4,interval=0", "interval 0 must be"),
        ("fixed:4,bits=3", "'bits' is given twice"),
        ("dq-sgd:4", "'4' must be written as argument=value; known: .*budget"),
        ("dq-sgd:budgit=4", "unknown argument 'budgit'; known: .*budget.*horizon"),
        ("dq-sgd:bits=4", "unknown argument 'bits'"),
        ("dq-sgd:budget=much", "budget 'much' is not a number"),
        ("dq-sgd:budget=9", "budget 9.0 must be from 1 to 8"),
        ("dq-sgd:budget=nan", "budget nan"),
        ("dq-sgd:integral_gain=-1", "integral_gain -1.0"),
        ("dq-sgd:error=0", "error 0.0 must be a positive number"),
        ("dq-sgd:contraction=0.5", "contraction 0.5 needs a horizon"),
        ("dq-sgd:contraction=2,horizon=5", "contraction 2.0 must be"),
        ("dq-sgd:horizon=0", "horizon 0 must be"),
        ("linear-ramp:start=8,end=2", "end 2 must be at least start, 8"),
        ("linear-ramp:end=9", "end: bit width 9"),
        ("random-ramp:decisions=3", "decisions 3 is too few"),
        ("adaquantfl:start=1", "start 1 must be at least 2"),
        ("dadaquant:patience=0", "patience 0"),
        ("feddq:widths=2-4", "widths '2-4' is not numbers of bits joined by"),
        ("feddq:widths=8+2", "increasing"),
        ("feddq:widths=2+4", "start: bit width 8"),
        ("accordion:start=2,few=4", "few 4 must be at most start, 2"),
        ("accordion:threshold=nan", "threshold nan"),
        ("goodput:keep=1", "keep 1.0"),
        ("goodput:interval=0", "interval 0"),
        ("gravac:least_gain=2", "least_gain 2.0"),
    ],
)
def test_wrong_specs_are_refused_by_name(spec: str, message: str) -> None:
    with pytest.raises(ValueError, match=message) as error:
        make_controller(spec)
    assert repr(spec) in str(error.value)


# On real ranks.


def test_every_name_drives_ddp_at_the_same_widths_on_all_ranks() -> None:
    def rank_main(rank: int) -> dict[str, list[int]]:
        widths = {}
        for spec in SPECS:
            controller = make_controller(spec + ("," if ":" in spec else ":") + "interval=2")
            model = models.small_model(width=32, layers=1)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            state = mqgrad.CompressionState(controller)
            ddp = models.compressed_ddp(model, state)
            state.mark()
            widths[spec] = []
            for _ in range(7):
                optimizer.zero_grad()
                x, y = models.batch(rank, len(widths[spec]), width=32)
                loss = torch.nn.functional.cross_entropy(ddp(x), y)
                loss.backward()
                # What is in force, and what this rank's own copy of the rule decided: rank 0's is what counts.
                widths[spec].append(state.bits)
                assert getattr(controller, "bits") == state.bits  # noqa: B009 - no part of the protocol
                optimizer.step()
                state.step(loss)
            state.close()
        return widths

    first, second = run_ranks(rank_main)
    assert first == second
    assert set(first) == set(SPECS)
    assert len(set(first["linear-ramp:decisions=5"])) == 4
