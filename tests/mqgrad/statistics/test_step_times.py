"""What the seconds of a few widths teach about those of all."""

import dataclasses
import itertools
import json
import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from intervals import BASE

from mqgrad.codecs.quantization_noise import Coding
from mqgrad.statistics.interval import IntervalStatistics
from mqgrad.statistics.step_times import StepTimes
from mqgrad.widths import CODED_WIDTHS, WIDTHS, Width


def interval(bits: Width, seconds: float, *, iterations: int = 10) -> IntervalStatistics:
    """Of it, the ranks do not wait for a millisecond."""
    losses = (1.0,) * iterations
    return dataclasses.replace(BASE, bits=bits, step_seconds=seconds, compute_seconds=0.001, losses=losses)


def after(*intervals: IntervalStatistics) -> StepTimes:
    times = StepTimes()
    for statistics in intervals:
        times.observe(statistics)
    return times


def test_one_interval_is_predicted_as_it_was_and_more_bits_as_longer() -> None:
    times = after(interval(4, 0.1))
    assert times.seconds(4) == pytest.approx(0.1, rel=0.35)
    assert times.seconds(1) < times.seconds(4) < times.seconds(32)


def test_waiting_that_no_width_shortens_is_not_taken_for_bytes() -> None:
    times = after(*(interval(bits, 0.1) for bits in (4, 2, 1, 1 / 2)))
    assert times.seconds(32) < 0.3  # by the first interval alone it was half a second
    times.observe(interval(32, 0.1))
    assert times.seconds(32) == pytest.approx(0.1, rel=0.05)
    assert [times.seconds(bits) for bits in (1, 4)] == pytest.approx([0.1] * 2, rel=0.25)


@pytest.mark.parametrize("seconds_per_bit", [0.0, 0.001, 0.02])
def test_finds_what_two_widths_show_through_noise(seconds_per_bit: float) -> None:
    rng, times = random.Random(0), StepTimes()
    for k in range(20):
        bits = (2, 8)[k % 2]
        times.observe(interval(bits, (0.05 + seconds_per_bit * bits) * rng.gauss(1.0, 0.05)))
    for bits in (2, 8):
        assert times.seconds(bits) == pytest.approx(0.05 + seconds_per_bit * bits, rel=0.2)


def test_a_slow_start_is_forgotten() -> None:
    times = after(interval(4, 0.5, iterations=2), *(interval(bits, 0.1) for bits in (3, 8, 16)))
    assert times.seconds(8) == pytest.approx(0.1, rel=0.2)


def test_a_first_interval_that_computed_long_is_forgotten() -> None:
    slow = dataclasses.replace(interval(4, 0.5, iterations=2), compute_seconds=0.45)
    usual = [dataclasses.replace(interval(4, 0.1), compute_seconds=0.05) for _ in range(3)]
    assert after(slow, *usual).seconds(4) == pytest.approx(0.1, rel=0.2)


def test_overheads_that_overlap_with_computing_do_not_hide_the_slope() -> None:
    times = StepTimes()
    for bits in (8, 2, 4, 2, 8):  # fixed_wire_seconds alone is longer than an iteration
        seconds = interval(bits, 0.05 + 0.01 * bits)
        times.observe(dataclasses.replace(seconds, compute_seconds=0.04, fixed_wire_seconds=0.2))
    assert times.seconds_per_bit == pytest.approx(0.01, rel=0.3)


def test_latency_measured_while_ranks_were_late_does_not_hide_the_slope() -> None:
    costs = {"compute_seconds": 0.015, "encode_seconds": 0.001, "decode_seconds": 0.001}
    opening = dataclasses.replace(interval(4, 0.045, iterations=2), **costs)
    for latency in (0.025, 0.03, 1.0):
        times = after(dataclasses.replace(opening, fixed_wire_seconds=latency))
        assert times.seconds(1) < 0.7 * times.seconds(4)
        assert times.seconds_per_bit > times.slope_deviation


def test_latency_that_was_real_shows_when_fewer_bits_are_tried() -> None:
    costs = {"fixed_wire_seconds": 0.04, "encode_seconds": 0.001, "decode_seconds": 0.001}
    opening = dataclasses.replace(interval(4, 0.045, iterations=2), **costs)
    times = after(opening, *(interval(bits, 0.042 + 0.0001 * bits) for bits in (1, 4, 1)))
    assert times.seconds(1) > 0.9 * times.seconds(4)


def test_finds_out_that_codes_cost_more_than_they_save() -> None:
    rng, times = random.Random(0), StepTimes()
    for bits in (4, 2, 8, 16, 32, 4, 32, 32):
        times.observe(interval(bits, (0.03 if bits == 32 else 0.04) * rng.gauss(1.0, 0.03)))
    assert times.seconds(32) == pytest.approx(0.03, rel=0.1)
    assert min(times.seconds(bits) for bits in (2, 4, 8, 16)) > times.seconds(32)


def test_32_bits_seem_faster_by_what_coding_takes_until_they_are_tried() -> None:
    def coding(seconds: float) -> StepTimes:
        coded = {"encode_seconds": seconds, "decode_seconds": 0.0}
        return after(*(dataclasses.replace(interval(bits, 0.05), **coded) for bits in (4, 2, 8, 16)))

    assert coding(0.01).seconds(32) < coding(0.005).seconds(32) < coding(0.0).seconds(32)


def test_a_run_that_begins_uncoded_learns_what_coding_costs_from_its_first_codes() -> None:
    times = after(interval(32, 0.1))
    assert times.coding_seconds == 0
    times.observe(dataclasses.replace(interval(4, 0.1), encode_seconds=0.02, decode_seconds=0.01))
    assert 0.02 <= times.coding_seconds <= 0.05


def test_what_coding_costs_is_learned_anew_late_in_a_run() -> None:
    rng, times = random.Random(0), StepTimes()

    def learned(coding: float, intervals: int) -> float:
        for k in range(intervals):
            bits = (2, 8, 32)[k % 3]
            seconds = 0.05 + 0.0002 * bits + (coding if bits < 32 else 0.0)
            times.observe(interval(bits, seconds * rng.gauss(1.0, 0.03)))
        return times.coding_seconds

    assert learned(0.01, 300) == pytest.approx(0.01, abs=0.006)
    assert learned(0.03, 60) == pytest.approx(0.03, abs=0.006)
    assert learned(0.002, 120) < 0.01


def test_an_uncertain_cost_of_coding_stays_in_proportion() -> None:
    def coded(bits: Width) -> IntervalStatistics:
        return dataclasses.replace(interval(bits, 0.06), encode_seconds=0.004, decode_seconds=0.0)

    times = after(*map(coded, (4, 2, 8, 2)))
    before = times.coding_seconds
    for _ in range(500):  # which do not tell it from the rest
        times.observe(coded(2))
    assert times.coding_seconds == pytest.approx(before, rel=0.3)


def test_coding_beside_backward_counts_as_coding() -> None:
    coded = {"encode_seconds": 0.006, "decode_seconds": 0.004}

    def beside(bits: Width) -> IntervalStatistics:
        """Half of 10 ms of coding holds backward up, half is waited for; computing alone takes 50 ms."""
        if bits == 32:
            return dataclasses.replace(interval(32, 0.05), compute_seconds=0.05)
        return dataclasses.replace(interval(bits, 0.06), compute_seconds=0.055, **coded)

    fixed, _, coding = after(*(beside((4, 2, 32)[k % 3]) for k in range(59))).state_dict()["mean"]
    assert fixed == pytest.approx(0.05, rel=0.03)
    assert coding == pytest.approx(0.01, rel=0.2)


def test_computing_is_at_least_what_was_not_waited_for_less_coding() -> None:
    coded = {"encode_seconds": 0.02, "decode_seconds": 0.01, "compute_seconds": 0.09}
    times = after(
        dataclasses.replace(interval(32, 0.05), compute_seconds=0.04),
        *(dataclasses.replace(interval(4, 0.1), **coded) for _ in range(3)),
    )
    fixed, _, coding = times.state_dict()["mean"]
    assert 0.06 - 1e-9 <= fixed < 0.09 <= fixed + coding
    times.observe(dataclasses.replace(interval(32, 0.1), compute_seconds=0.09))
    assert times.state_dict()["mean"][0] >= 0.09


def test_a_link_that_slows_down_is_noticed() -> None:
    times = after(*(interval(bits, 0.01 + 0.0001 * bits) for bits in (4, 16, 16, 16)))
    for _ in range(2):
        times.observe(interval(16, 0.01 + 0.01 * 16))
    assert times.seconds(32) > 2 * times.seconds(8)


@pytest.mark.parametrize("factor", [0.1, 10.0])
def test_a_rate_that_jumps_is_learned_from_one_interval(factor: float) -> None:
    times = after(*(interval(bits, 0.02 + 0.005 * bits) for bits in (4, 2, 4, 8) * 5))
    assert times.slope_deviation < 0.2 * times.seconds_per_bit
    times.observe(interval(4, 0.02 + 0.005 * factor * 4))
    assert times.seconds_per_bit == pytest.approx(0.005 * factor, rel=0.5)
    assert times.fixed_seconds == pytest.approx(0.02, rel=0.25)


def test_one_late_interval_is_soon_forgotten() -> None:
    late = (interval(4, 0.4), *(interval(4, 0.04),) * 2)
    times = after(*(interval(bits, 0.02 + 0.005 * bits) for bits in (4, 2, 4, 8) * 5), *late)
    assert times.seconds(4) == pytest.approx(0.04, rel=0.05)
    assert times.seconds(8) == pytest.approx(0.06, rel=0.15)


def test_what_has_long_not_been_tried_seems_less_and_less_slow() -> None:
    times = after(*(interval(bits, 0.01 + 0.01 * bits) for bits in (4, 2, 1, 1)))
    known = times.seconds(32)
    for _ in range(5):
        times.observe(interval(1, 0.02))
    assert 0.2 * known < times.seconds(32) < known


def test_what_was_computed_stays() -> None:
    times = after(interval(4, 0.1), dataclasses.replace(interval(4, 0.1), compute_seconds=0.09))
    assert times.fixed_seconds >= 0.09


@pytest.mark.parametrize("seconds", [0.0, math.inf, math.nan, 1e300, -1.0])
def test_any_clock_leaves_finite_predictions(seconds: float) -> None:
    times = after(interval(4, seconds), interval(2, seconds), interval(4, 0.1))
    for bits in (1 / 64, 4, 32):
        assert 0 <= times.seconds(bits) < 1e12
    assert after(dataclasses.replace(BASE, losses=())).seconds(4) == 0.0


def test_state_continues_exactly() -> None:
    first = after(interval(4, 0.1), interval(2, 0.06))
    second = StepTimes()
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    for times in (first, second):
        times.observe(interval(8, 0.2))
    assert first.seconds(32) == second.seconds(32)


def test_rounds_that_become_longer_are_expected_to_take_longer() -> None:
    """2 ms an iteration and 10 ms an average at 4 bits: the first round of another length is no surprise."""

    def rounds(period: int) -> IntervalStatistics:
        computed = 0.002 * period
        return dataclasses.replace(
            BASE,
            bits=4,
            period=period,
            step_seconds=computed + 0.01,
            compute_seconds=computed,
            losses=(1.0,) * 10,
        )

    for before, now in ((8, 16), (16, 2)):
        times = after(rounds(before), rounds(before))
        slope = times.seconds_per_bit
        times.observe(rounds(now))
        assert times.seconds(4) == pytest.approx(0.002 * now + 0.01, rel=0.02)
        assert times.seconds_per_bit == pytest.approx(slope, rel=0.05)


def test_before_the_first_interval_nothing_is_known() -> None:
    times = StepTimes()
    assert (times.fixed_seconds, times.seconds_per_bit, times.slope_deviation) == (0, 0, 0)
    assert (times.coding_seconds, times.seconds(4), times.seconds(32)) == (0, 0, 0)


@pytest.mark.parametrize(("latency", "counted"), [(0.004, 0.004), (1.0, 0.25 * 0.047)])
def test_what_the_first_interval_is_taken_for(latency: float, counted: float) -> None:
    """Of 100 ms 50 are not waited for and 3 are coding; of the 47 that remain, latency is at most a quarter."""
    costs = {"compute_seconds": 0.05, "encode_seconds": 0.002, "decode_seconds": 0.001}
    times = after(dataclasses.replace(interval(4, 0.1), **costs, fixed_wire_seconds=latency))
    assert times.state_dict()["mean"] == pytest.approx([0.05 + counted, (0.047 - counted) / 4, 0.003])
    assert times.fixed_seconds == pytest.approx(0.053 + counted)
    assert times.seconds(4) == pytest.approx(0.1)
    assert times.coding_seconds == pytest.approx(0.003 * 1.25)  # uncertain by its own size: a quarter of that


def test_coding_counts_as_fixed_where_the_last_interval_was_coded() -> None:
    coded = dataclasses.replace(interval(4, 0.1), encode_seconds=0.01, decode_seconds=0.01)
    times = after(coded)
    fixed, _, coding = times.state_dict()["mean"]
    assert times.fixed_seconds == fixed + coding > fixed
    times.observe(interval(32, 0.2))
    fixed, _, coding = times.state_dict()["mean"]
    assert times.fixed_seconds == fixed < fixed + coding


def test_coding_is_at_most_half_of_what_no_width_changes() -> None:
    times = after(dataclasses.replace(interval(4, 0.1), encode_seconds=0.05, decode_seconds=0.04))
    assert times.coding_seconds == pytest.approx(times.fixed_seconds / 2)


def test_many_iterations_teach_more_than_few() -> None:
    few, some, many = (
        after(interval(4, 0.1), interval(4, 0.2, iterations=n)).seconds(4) for n in (1, 4, 100)
    )
    assert 0.1 < few < some < many <= 0.2


@pytest.mark.parametrize(
    "left_out",
    [
        {"step_seconds": math.nan},
        {"compute_seconds": math.nan},
        {"fixed_wire_seconds": math.nan},
        {"encode_seconds": math.nan},
        {"decode_seconds": math.nan},
        {"losses": ()},
    ],
)
def test_an_interval_that_is_left_out_changes_nothing(left_out: dict[str, object]) -> None:
    times = after(interval(4, 0.1), interval(8, 0.2))
    before = times.state_dict()
    times.observe(dataclasses.replace(interval(2, 5.0), **left_out))
    assert times.state_dict() == before


@pytest.mark.parametrize(("seconds", "held"), [(0.0, 1e-9), (-1.0, 1e-9), (1e300, 1e9), (math.inf, 1e9)])
def test_seconds_are_held_in_their_range(seconds: float, held: float) -> None:
    assert after(interval(4, seconds)).seconds(4) == pytest.approx(held)


SECONDS = st.floats(1e-4, 100.0)
SEEN = st.tuples(
    st.sampled_from(WIDTHS), SECONDS, SECONDS, SECONDS, st.integers(1, 50), st.sampled_from([1, 2, 16])
)


@given(st.lists(SEEN, min_size=1))
def test_whatever_is_seen_more_bits_take_as_long_and_nothing_less_than_computing(seen: list) -> None:
    times = StepTimes()
    for bits, seconds, computed, coding, iterations, period in seen:
        changes = {"compute_seconds": computed, "encode_seconds": coding, "decode_seconds": 0.0}
        shown = interval(bits, seconds, iterations=iterations)
        times.observe(dataclasses.replace(shown, period=period, **changes))
        assert min(times.state_dict()["mean"]) >= -1e-9
        assert times.seconds(bits) >= min(computed, seconds) * (1 - 1e-6)
        by_width = [times.seconds(width) for width in CODED_WIDTHS]
        assert all(a <= b * (1 + 1e-9) < math.inf for a, b in itertools.pairwise(by_width))


def test_a_state_that_lacks_something_is_refused() -> None:
    times = after(interval(4, 0.1))
    before = times.state_dict()
    with pytest.raises(ValueError, match=r"lacks .*covariance"):
        times.load_state_dict({"mean": [0.0] * 3, "bits": [4.0]})
    assert times.state_dict() == before


def gathered(bits: Width, seconds: float) -> IntervalStatistics:
    """Of four ranks that gather codes: twice the bytes of shards."""
    return dataclasses.replace(interval(bits, seconds), coding=Coding(relative_bytes=2.0))


def test_a_bit_costs_what_it_sends_whichever_way_codes_go() -> None:
    """0.1 s and 10 ms for each bit through shards, 20 ms gathered; 32 bits have a way of their own."""
    times = after(*(interval(bits, 0.1 + 0.01 * bits) for bits in (4, 2, 8, 4, 2)), gathered(2, 0.14))
    assert times.seconds_per_bit == pytest.approx(0.02, rel=0.2)
    assert times.seconds(4) == pytest.approx(0.18, rel=0.1)
    assert times.seconds(16) == pytest.approx(0.42, rel=0.2)
    assert times.seconds(32) < 0.1 + 32 * 0.01 + 0.02
    times.observe(interval(4, 0.14))
    assert times.seconds_per_bit == pytest.approx(0.01, rel=0.2)
    times.observe(interval(32, 0.42))
    assert times.seconds(32) == pytest.approx(0.42, rel=0.05)
