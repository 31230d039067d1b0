"""Observations: values on statistics made by hand, bounds whatever happens, JSON."""

import dataclasses
import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from intervals import statistics

from mqgrad.policies.observation import KINDS, ObservationSchema
from mqgrad.policies.observer import Observer
from mqgrad.statistics.interval import IntervalStatistics
from mqgrad.statistics.losses import SmoothedLosses, log_loss
from mqgrad.statistics.step_times import StepTimes

BASE = statistics(losses=(2.0,) * 5, peak_energy=600.0)

any_float = st.floats(allow_nan=True, allow_infinity=True)
FIGURES = (
    "step_seconds",
    "compute_seconds",
    "wire_seconds",
    "gradient_signal",
    "gradient_noise",
    "peak_energy",
    "update_exponent",
)
any_statistics = st.builds(
    lambda losses, bits, values: dataclasses.replace(BASE, losses=tuple(losses), bits=bits, **values),
    losses=st.lists(any_float, max_size=7),
    bits=st.sampled_from((1, 2, 3, 4, 5, 6, 7, 8, 16, 32)),
    values=st.fixed_dictionaries(dict.fromkeys(FIGURES, any_float)),
)


def with_loss(*losses: float, **changes: object) -> IntervalStatistics:
    return dataclasses.replace(BASE, losses=losses, **changes)  # type: ignore[arg-type]


def test_loss_kind_is_differences_and_total_drop() -> None:
    observer = Observer(ObservationSchema(kind="loss", history=3))
    assert observer.observe(with_loss(4.0)).tolist() == [0, 0, 0]
    second = observer.observe(with_loss(2.0))
    assert second == pytest.approx([0, math.log(2), math.log(2)])
    observer.observe(with_loss(2.0))
    fourth = observer.observe(with_loss(1.0))
    assert fourth == pytest.approx([0, math.log(2), math.log(4)])


def test_an_interval_that_was_made_longer_is_seen_as_several() -> None:
    """Larger drops would be taken for a loss that falls faster."""
    schema = ObservationSchema(kind="loss", history=4)
    stretched, usual = Observer(schema, interval=2), Observer(schema, interval=2)
    losses = [8.0, 6.0, 5.0, 4.0, 3.0, 2.5, 2.0, 1.5, 1.0]
    for first in range(0, 8, 2):
        expected = usual.observe(with_loss(*losses[first : first + 2]))
    stretched.observe(with_loss(*losses[:2]))
    assert stretched.observe(with_loss(*losses[2:8])).tolist() == expected.tolist()
    opened = Observer(schema, interval=10)
    assert opened.observe(with_loss(*losses[:2])).tolist() == [0] * 4  # of two iterations where ten are usual
    opened = Observer(schema, interval=4)
    assert opened.observe(with_loss(*losses)).tolist() == [0] * 4  # and of nine where four are
    seen = opened.observe(with_loss(*losses))  # four and five
    assert seen[-2:] == pytest.approx([math.log(5.75 / 2), math.log(sum(losses) / 9 / 2)])


def test_loss_kind_is_scale_free() -> None:
    schema = ObservationSchema(kind="loss")
    small, large = Observer(schema), Observer(schema)
    for loss in (3.0, 2.0, 2.5, 1.0):
        a, b = small.observe(with_loss(loss)), large.observe(with_loss(100 * loss))
    assert a == pytest.approx(b, abs=1e-6)


def test_full_kind_values() -> None:
    schema = ObservationSchema(kind="full", widths=(1, 2, 4, 32))
    base = dataclasses.replace(BASE, update_exponent=0.75)
    seen = Observer(schema, budget_seconds=10.0).observe(base)
    times = StepTimes()
    times.observe(base)

    def expected_log(noise: float) -> float:
        return -0.75 * math.log1p(noise / 11) - 0.25 * math.log1p(noise / 11) / 2

    assert seen.shape == (schema.size,) == (17,)
    expected = [
        *[0.0] * 5,
        math.log2(32 * times.seconds_per_bit / times.fixed_seconds),
        math.log2(32 * times.slope_deviation / times.fixed_seconds),
        math.log10(times.fixed_seconds),
        times.coding_seconds / times.fixed_seconds,
        10 / 11,  # of the mean gradient's squared norm, 11
        0.75,
        expected_log(600),  # one bit: at most max²
        expected_log(600 / 6),
        expected_log(600 / (6 * 49)),
        0.0,  # 32 bits add no noise
        math.log2(4) / 5,
        0.1,  # 5 iterations of 0.2 s in 10 s
    ]
    assert seen == pytest.approx(expected, abs=1e-5)


def test_a_signal_that_is_lost_in_the_noise_changes_little() -> None:
    """Its estimate is often negative; noise is compared with the mean gradient's norm, which is known well."""
    positive = Observer(ObservationSchema()).observe(statistics(gradient_signal=0.1, gradient_noise=10.9))
    negative = Observer(ObservationSchema()).observe(statistics(gradient_signal=-0.1, gradient_noise=11.1))
    assert negative == pytest.approx(positive, abs=0.05)


def test_the_gradient_is_averaged_over_decisions_and_survives_an_overflow() -> None:
    observer = Observer(ObservationSchema(widths=(2, 32)))
    first = observer.observe(statistics(update_exponent=1.0))
    assert observer.observe(statistics(gradient_signal=math.nan, gradient_noise=math.inf))[
        9:13
    ] == pytest.approx(first[9:13])
    assert observer.observe(statistics(update_exponent=0.0))[10] == pytest.approx(0.9)


def test_wire_ratio_does_not_depend_on_the_width_in_use() -> None:
    schema = ObservationSchema(kind="full")
    at_2 = Observer(schema).observe(dataclasses.replace(BASE, bits=2, step_seconds=0.14))
    at_8 = Observer(schema).observe(dataclasses.replace(BASE, bits=8, step_seconds=0.20))
    assert at_2[5] == pytest.approx(at_8[5])


def test_authors_kind_smooths_iterations() -> None:
    observer = Observer(ObservationSchema(kind="authors", history=3))
    assert observer.observe(with_loss(2.0)) == pytest.approx([2, 2, 2])
    assert observer.observe(with_loss(1.0, 1.0)) == pytest.approx([2, 1.9, 1.81])


def test_smoothed_losses_keep_the_newest() -> None:
    smoothed = SmoothedLosses(2)
    smoothed.extend([1.0, 2.0, 3.0])
    assert smoothed.values == pytest.approx([1.1, 1.29])


@pytest.mark.parametrize("kind", KINDS)
@given(intervals=st.lists(any_statistics, min_size=1, max_size=4))
def test_every_observation_is_inside_its_bounds(kind: str, intervals: list[IntervalStatistics]) -> None:
    schema = ObservationSchema(kind=kind)
    observer = Observer(schema, budget_seconds=1.0)
    low, high = schema.bounds()
    for interval in intervals:
        seen = observer.observe(interval)
        assert seen.dtype == np.float32
        assert seen.shape == (schema.size,)
        assert np.isfinite(seen).all()
        assert (low <= seen).all()
        assert (seen <= high).all()


def test_nan_loss_counts_as_the_largest() -> None:
    assert log_loss(math.nan) == log_loss(math.inf) == math.log(1e18)
    seen = Observer(ObservationSchema(kind="authors")).observe(with_loss(math.nan))
    assert seen.tolist() == [1000.0] * 5


@pytest.mark.parametrize("kind", KINDS)
def test_state_continues_exactly(kind: str) -> None:
    schema = ObservationSchema(kind=kind)
    first = Observer(schema, 7.0)
    for loss in (3.0, 2.0):
        first.observe(with_loss(loss))
    second = Observer(schema, 7.0)
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert first.observe(with_loss(1.5)).tolist() == second.observe(with_loss(1.5)).tolist()


def test_reset_forgets() -> None:
    observer = Observer(ObservationSchema(), 7.0)
    expected = observer.observe(BASE).tolist()
    observer.observe(with_loss(1.0))
    observer.reset()
    assert observer.observe(BASE).tolist() == expected


@pytest.mark.parametrize("kind", KINDS)
def test_json_round_trip(kind: str) -> None:
    schema = ObservationSchema(kind=kind, widths=(2, 8), history=7)
    assert ObservationSchema.from_json(json.loads(json.dumps(schema.to_json()))) == schema


def test_only_the_full_kind_has_changed_since_version_1() -> None:
    for kind in ("loss", "authors"):
        for version in (1, 2, 3, 4):
            assert ObservationSchema(kind=kind, version=version).size == ObservationSchema(kind=kind).size
    for version in (1, 4):
        message = f"version is {version}, and 5 is needed; train and export the policy again"
        with pytest.raises(ValueError, match=message):
            ObservationSchema(kind="full", version=version)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("version", 6),
        ("version", True),
        ("kind", "everything"),
        ("kind", ["full"]),
        ("history", 1),
        ("history", 1e9),
        ("widths", []),
        ("widths", [4, 2]),
        ("widths", [2, 2]),
        ("widths", [9]),
        ("widths", [2.5, 4.0]),
        ("widths", [True]),
        ("widths", "248"),
        ("surprise", 1),
    ],
)
def test_wrong_fields_are_refused_by_name(field: str, value: object) -> None:
    document = ObservationSchema().to_json() | {field: value}
    with pytest.raises(ValueError, match=field.rstrip("s")):
        ObservationSchema.from_json(document)


@pytest.mark.parametrize("document", [None, [], {}, "full", {"kind": "full"}])
def test_not_a_schema(document: object) -> None:
    with pytest.raises(ValueError, match="observation schema"):
        ObservationSchema.from_json(document)
