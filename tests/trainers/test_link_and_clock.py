"""Arithmetic of the emulated link and the modelled clock."""

import pickle
import time
from typing import Any

import pytest
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from intervals import statistics
from ranks import run_ranks

import mqgrad
from mqgrad.trainers import LinkEmulation, ModelClock
from mqgrad.trainers.clusters.clock import ModelledTime
from mqgrad.trainers.clusters.session import TrainingSession
from mqgrad.trainers.link import SwitchingEmulation, parse_emulation
from mqgrad.trainers.workloads.workload import make_workload


def test_a_link_takes_latency_plus_bytes_over_rate() -> None:
    assert LinkEmulation(mbit_per_s=8, latency_ms=2).seconds(1_000_000) == pytest.approx(1.002)
    assert LinkEmulation(mbit_per_s=8).seconds(0) == 0


def test_a_link_says_that_it_is_emulated() -> None:
    assert str(LinkEmulation(mbit_per_s=100, latency_ms=0.5)) == "100 Mbit/s + 0.5 ms (emulated)"


@pytest.mark.parametrize("rate", [0, -1, float("nan"), float("inf"), "10", True])
def test_bad_rates_are_named(rate: Any) -> None:
    with pytest.raises(ValueError, match=f"mbit_per_s must be a finite number above 0, not {rate!r}"):
        LinkEmulation(mbit_per_s=rate)
    with pytest.raises(ValueError, match=f"mbit_per_s .* {rate!r}"):
        ModelClock(compute_seconds=0.1, mbit_per_s=rate)


def test_negative_latency_is_named() -> None:
    with pytest.raises(ValueError, match=r"latency_ms .* -0\.5"):
        LinkEmulation(mbit_per_s=1, latency_ms=-0.5)


@given(
    st.floats(0, 1e9, allow_nan=False),
    st.floats(0.1, 1e5, allow_nan=False),
    st.floats(0, 100, allow_nan=False),
)
def test_clock_replaces_every_second_and_nothing_else(nbytes: float, rate: float, latency: float) -> None:
    measured = statistics(wire_bytes=nbytes)
    modelled = ModelClock(compute_seconds=0.01, mbit_per_s=rate, latency_ms=latency).apply(measured)
    assert modelled.wire_seconds == pytest.approx(latency / 1000 + nbytes * 8 / (rate * 1e6))
    assert modelled.step_seconds == pytest.approx(0.01 + modelled.wire_seconds)
    assert (modelled.encode_seconds, modelled.decode_seconds, modelled.compute_seconds) == (0, 0, 0.01)
    for name in ("losses", "bits", "gradient_noise"):
        assert getattr(modelled, name) == getattr(measured, name)


def test_clock_on_another_link_keeps_its_compute() -> None:
    clock = ModelClock(compute_seconds=0.01, mbit_per_s=1).on_link(LinkEmulation(mbit_per_s=5, latency_ms=2))
    assert clock == ModelClock(compute_seconds=0.01, mbit_per_s=5, latency_ms=2)
    assert clock.on_link(LinkEmulation(mbit_per_s=8)).latency_ms == 2


def test_a_controller_under_a_clock_may_change_its_interval() -> None:
    controller = mqgrad.FixedBits(4)
    timed = ModelledTime(controller, ModelClock(compute_seconds=0.01, mbit_per_s=1))
    assert timed.interval == controller.interval
    controller.interval = 3
    assert timed.decide(statistics(wire_bytes=100.0)) == 4
    assert timed.interval == 3


def at(seconds: float, link: LinkEmulation, monkeypatch: pytest.MonkeyPatch) -> float:
    """The rate at this time of the clock, which stays there."""
    monkeypatch.setattr(time, "monotonic", lambda: seconds)
    return link.rate_now()


def test_an_emulated_link_switches_in_turn_from_the_start_of_training(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    link = pickle.loads(pickle.dumps(parse_emulation("8/80/40@5", latency_ms=2)))
    assert [at(1000.0 + s, link, monkeypatch) for s in (0, 4.9, 5, 7)] == [8, 8, 80, 80]  # from its first use
    link.begin()  # processes have started, models been built
    assert at(1050.0, link, monkeypatch) == 8
    with link.training():
        assert [at(1050.0 + s, link, monkeypatch) for s in (0, 4.9, 5, 10, 15)] == [8, 8, 80, 40, 8]
    assert at(1080.0, link, monkeypatch) == 8  # an evaluation
    with link.training():
        assert [at(1080.0 + s, link, monkeypatch) for s in (4.9, 5)] == [8, 80]
    link.begin()  # another run on the same link
    with link.training():
        assert [at(1085.0 + s, link, monkeypatch) for s in (4.9, 5)] == [8, 80]
        at(1085.0, link, monkeypatch)
        assert link.seconds(1_000_000) == pytest.approx(1.002)
    assert str(link) == "8 / 80 / 40 Mbit/s every 5 s + 2 ms (emulated)"
    with pytest.raises(ValueError, match="knows one rate"):
        ModelClock(compute_seconds=0.01, mbit_per_s=1).on_link(link)


def test_a_session_counts_seconds_of_training_from_the_end_of_the_reset() -> None:
    def rank_main(rank: int) -> tuple[float, float, float]:
        session = TrainingSession(make_workload("digits-mlp", width=8), dist.group.WORLD)
        link = parse_emulation("8/80@1000")
        link._clock.trained = 1500.0  # in use before
        before = link.rate_now()
        session.reset(seed=1, link=link)
        after = link._clock.seconds
        begun = time.monotonic()
        session.run(20, bits=4)
        most = time.monotonic() - begun
        session.evaluate()
        time.sleep(0.2)
        trained = link._clock.seconds
        session.close()
        return before, after, trained / most

    ((before, after, share),) = run_ranks(rank_main, 1)
    assert (before, after) == (80, 0)
    assert 0.5 < share <= 1


@pytest.mark.parametrize("text", ["fast", "100@10", "100/200", "100/0@1", "100/200@0", "-1", "1:2", ""])
def test_what_is_no_emulated_link_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="as in 100 or 100/1000@10"):
        parse_emulation(text)


def test_a_switching_link_needs_another_rate() -> None:
    with pytest.raises(ValueError, match="another rate"):
        SwitchingEmulation(mbit_per_s=1, others_mbit_per_s=(), switch_seconds=1)
