"""Shards or an all-gather, as a run measures them: the faster is found, alike on all ranks, and nothing is lost."""

import dataclasses
import math
import random
import threading
from collections.abc import Callable

import models
import pytest
import torch
from intervals import BASE
from ranks import run_cases, run_ranks

import mqgrad
from mqgrad.codecs.quantization_noise import Coding
from mqgrad.compressors.base import Step
from mqgrad.compressors.topology_choice import TopologyChoice, gain_of_gathering
from mqgrad.costs import Costs
from mqgrad.statistics.bandit import TwoArmedBandit
from mqgrad.statistics.interval import IntervalStatistics
from mqgrad.trainers.clusters.in_process import InProcessTransport, MeetingPoint
from mqgrad.trainers.link import LinkEmulation
from mqgrad.widths import Width

MEASURED = "quantized:topology=measured"
Seconds = Callable[[bool, int], float]
"""Of an iteration, by whether it gathers and its number."""


def gathered(
    choice: TopologyChoice,
    seconds: Seconds,
    iterations: int,
    *,
    bits: Callable[[int], Width] = lambda _: 4,
    statistics: IntervalStatistics | None = None,
    noise: float = 0.1,
    transport: InProcessTransport | None = None,
    seed: int = 0,
    backwards: int = 1,
) -> list[bool]:
    """Whether each of some iterations gathers, of which each takes ``seconds``, more or less."""
    transport = transport or InProcessTransport(MeetingPoint(1, 5.0), 0)
    rng, lap, last, used = random.Random(seed), 0.0, 0.0, []
    for i in range(iterations):
        step = Step(
            *(transport, bits(i), i, 7, Costs(), False),
            seconds=last,
            laps=i // backwards,
            statistics=statistics,
        )
        choice.begin_iteration(step)
        choice.begin_iteration(step)  # at its second bucket
        used.append(choice.gathers)
        lap += seconds(choice.gathers, i) * math.exp(rng.gauss(0.0, noise))
        if i % backwards == backwards - 1:
            last, lap = lap, 0.0
    return used


def share(used: list[bool]) -> float:
    return sum(used) / len(used)


@pytest.mark.parametrize("noise", [0.0, 0.03, 0.1])
@pytest.mark.parametrize("ratio", [0.85, 0.93, 1.07, 1.2])
def test_the_faster_is_found(ratio: float, noise: float) -> None:
    used = gathered(
        TopologyChoice(), lambda gathers, _: 0.02 * (ratio if gathers else 1.0), 1000, noise=noise
    )
    right = share(used[200:])
    assert (right if ratio < 1 else 1 - right) > 0.85


@pytest.mark.parametrize("ratio", [0.7, 1.4])
def test_several_backwards_of_one_step_count_as_one_iteration(ratio: float) -> None:
    used = gathered(
        TopologyChoice(), lambda gathers, _: 0.02 * (ratio if gathers else 1.0), 2000, backwards=4
    )
    right = share(used[400:])
    assert (right if ratio < 1 else 1 - right) > 0.85


@pytest.mark.parametrize("ratio", [0.4, 2.5])
def test_what_is_far_slower_is_tried_seldom(ratio: float) -> None:
    used = gathered(TopologyChoice(), lambda gathers, _: 0.02 * (ratio if gathers else 1.0), 2000)
    wrong = sum(used) if ratio > 1 else len(used) - sum(used)
    assert 1 <= wrong <= 40


@pytest.mark.parametrize("noise", [0.01, 0.03, 0.1])
@pytest.mark.parametrize("before", [0.7, 0.8, 1.25, 1.4])
@pytest.mark.parametrize("levels", [(0.02, 0.1), (0.1, 0.02)])
def test_follows_a_link_that_changes(levels: tuple[float, float], before: float, noise: float) -> None:
    """Wherever in a block it does."""
    for at in range(300, 364, 9):

        def seconds(gathers: bool, i: int, at: int = at) -> float:
            level, ratio = (levels[0], before) if i < at else (levels[1], 1 / before)
            return level * (ratio if gathers else 1.0)

        used = gathered(TopologyChoice(), seconds, 700, noise=noise, seed=at)
        assert (share(used[100:300]) > 0.7) == (before < 1)
        assert (share(used[500:]) > 0.7) == (before > 1)


@pytest.mark.parametrize("before", [0.25, 4.0])
def test_what_was_far_slower_is_not_thought_so_for_ever(before: float) -> None:
    """Nothing changes in the topology in use."""

    def seconds(gathers: bool, i: int) -> float:
        if gathers == (before < 1):
            return 0.02
        return 0.08 if i < 300 else 0.015

    used = gathered(TopologyChoice(), seconds, 3600, noise=0.03)
    assert (share(used[100:300]) > 0.7) == (before < 1)
    assert (share(used[3000:]) > 0.7) == (before > 1)


def test_another_width_is_tried_both_ways() -> None:
    def seconds(gathers: bool, i: int) -> float:
        return 0.02 * (1.6 if gathers else 1.0) if i < 200 else 0.01 * (0.8 if gathers else 1.0)

    used = gathered(TopologyChoice(), seconds, 400, bits=lambda i: 8 if i < 200 else 1, noise=0.02)
    assert 1 <= sum(used[:200]) <= 12
    assert share(used[210:]) > 0.8


@pytest.mark.parametrize("ratio", [0.85, 1.15])
def test_a_slow_start_and_an_early_change_of_the_width_mislead_nobody(ratio: float) -> None:
    def seconds(gathers: bool, i: int) -> float:
        return (0.1 if i < 3 else 0.02) * (ratio if gathers else 1.0)

    used = gathered(TopologyChoice(), seconds, 120, bits=lambda i: 4 if i < 3 else 1)
    right = share(used[20:])
    assert (right if ratio < 1 else 1 - right) > 0.8


def test_progress_counts_and_not_seconds_alone() -> None:
    statistics = dataclasses.replace(
        BASE,
        world_size=4,
        gradient_noise=0.1,
        peak_energy=1.0,
        update_exponent=0.0,
        coding=Coding(recoded=True),
    )
    assert gain_of_gathering(statistics, 2) > 0.06
    assert gain_of_gathering(statistics, 16) == 0.0

    def seconds(gathers: bool, _: int) -> float:
        return 0.021 if gathers else 0.02

    assert share(gathered(TopologyChoice(), seconds, 600, bits=lambda _: 2)[200:]) < 0.3
    assert (
        share(gathered(TopologyChoice(), seconds, 600, bits=lambda _: 2, statistics=statistics)[200:]) > 0.7
    )


def test_without_times_nothing_is_tried() -> None:
    assert not any(gathered(TopologyChoice(), lambda gathers, _: 0.0, 100))
    assert not any(gathered(TopologyChoice(), lambda gathers, _: 0.02, 100, backwards=1000))


@pytest.mark.parametrize("ratio", [0.88, 1.14])
def test_a_pause_teaches_little(ratio: float) -> None:
    """An evaluation in one iteration of 40, whichever that is."""
    right = []
    for phase in range(40):

        def seconds(gathers: bool, i: int, phase: int = phase) -> float:
            return 0.02 * (ratio if gathers else 1.0) + (2.0 if i % 40 == phase else 0.0)

        used = share(gathered(TopologyChoice(), seconds, 600, noise=0.03, seed=phase)[100:])
        right.append(used if ratio < 1 else 1 - used)
    assert min(right) > 0.6
    assert sum(right) / 40 > 0.8


def test_a_resumed_process_does_not_learn_from_its_slow_start() -> None:
    def seconds(gathers: bool, _: int) -> float:
        return 0.02 * (1.14 if gathers else 1.0)

    for length in range(60, 124, 8):
        choice = TopologyChoice()
        gathered(choice, seconds, length, noise=0.03)
        resumed = TopologyChoice()
        resumed.load_state_dict(choice.state_dict())
        used = gathered(
            resumed, lambda gathers, i: seconds(gathers, i) * (8 if i < 3 else 1), 200, noise=0.03
        )
        assert share(used) < 0.2


def test_iterations_between_others_are_not_measured() -> None:
    """The others at 32 bits, of which the choice is not told."""
    choice, used = TopologyChoice(), []
    transport = InProcessTransport(MeetingPoint(1, 5.0), 0)
    for i in range(0, 600, 2):
        choice.begin_iteration(Step(transport, 4, i, 7, Costs(), False, seconds=0.002, laps=i))
        used.append(choice.gathers)
    assert not any(used)


def test_what_has_been_learned_is_saved() -> None:
    def seconds(gathers: bool, _: int) -> float:
        return 0.01 if gathers else 0.02

    saved, resumed = TopologyChoice(), TopologyChoice()
    gathered(saved, seconds, 200)
    resumed.load_state_dict(saved.state_dict())
    assert resumed.state_dict() == saved.state_dict()
    assert share(gathered(resumed, seconds, 50)) > 0.9


def test_ranks_with_clocks_of_their_own_choose_alike() -> None:
    meeting, used = MeetingPoint(3, 20.0), [[], [], []]

    def rank_main(rank: int) -> None:
        def seconds(gathers: bool, i: int) -> float:
            return 0.01 * (1 + rank) * (1.02 - 0.04 * (i // 100 % 2) if gathers else 1.0)

        transport = InProcessTransport(meeting, rank)
        used[rank] = gathered(TopologyChoice(), seconds, 400, transport=transport, seed=rank)

    threads = [threading.Thread(target=rank_main, args=(rank,)) for rank in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20.0)
    assert len(used[0]) == 400
    assert used[0] == used[1] == used[2]
    assert 0 < sum(used[0]) < 400


@pytest.mark.parametrize("bits", [1 / 4, 1, 4])
def test_nothing_owed_is_lost_between_the_two(bits: Width) -> None:
    """What was applied is what ranks have sent, and that all but what they still owe."""

    def rank_main(rank: int) -> tuple[torch.Tensor, torch.Tensor]:
        # The other topology after each block, so that ranks exchange what they have noted, too.
        TwoArmedBandit.next = lambda self, bits, arm, handicap: 1 - arm  # type: ignore[method-assign]
        model, _, state = models.new_run(mqgrad.FixedBits(bits), compressor=MEASURED)
        alone = models.small_model()
        applied, own = torch.zeros(()), torch.zeros(())
        for iteration in range(14):
            for copy in (alone, model):
                copy.zero_grad()
                loss = models.backward(copy, rank, iteration)
            state.step(loss)
            own = own + models.gradient_of(alone)
            applied = applied + models.gradient_of(model)
        state.drain()
        saved = state._checkpoint.saved()["compressor"]
        assert saved["choice"]["gathers"]
        assert saved["pull_feedback"] == {}  # what shards owed has been handed over
        assert 0.2 < state.compressor.figures()["gathered_share"] < 0.8
        by_key = {id(parameter): key for key, parameter in enumerate(state.parameters)}
        owed = [saved["push_feedback"][by_key[id(parameter)]] for parameter in model.parameters()]
        state.close()
        return applied, own - torch.cat(owed)

    results = run_ranks(rank_main, world_size=3)
    for applied, _ in results:
        assert torch.equal(applied, results[0][0])
    torch.testing.assert_close(results[0][0], sum(sent for _, sent in results) / 3, rtol=1e-4, atol=1e-4)


def test_a_resumed_run_goes_on_with_what_it_has_learned() -> None:
    def rank_main(rank: int) -> tuple[list[bytes], list[bytes], dict[str, object], dict[str, object]]:
        model, optimizer, state = models.new_run(mqgrad.FixedBits(4), compressor=MEASURED)
        models.train(model, optimizer, state, rank, range(11))
        saved = state.state_dict()
        straight = models.train(model, optimizer, state, rank, range(11, 24))
        state.close()
        model, optimizer, state = models.new_run(mqgrad.FixedBits(4), compressor=MEASURED)
        state.load_state_dict(saved)
        loaded = state.state_dict()
        resumed = models.train(model, optimizer, state, rank, range(11, 24))
        state.close()
        return straight, resumed, saved["compressor"]["choice"], loaded["compressor"]["choice"]

    results = run_ranks(rank_main, world_size=3)
    for straight, resumed, saved, loaded in results:
        assert (straight, resumed) == results[0][:2]
        assert saved == loaded == results[0][2]
    assert all(count > 0 for count, _ in results[0][2]["known"]["arms"][0][1:])


def test_a_state_of_another_run_is_named_before_anything_is_sent() -> None:
    def rank_main(rank: int) -> str:
        model, optimizer, state = models.new_run(mqgrad.FixedBits(4), compressor=MEASURED)
        models.train(model, optimizer, state, rank, range(4))
        saved = state.state_dict()
        saved["compressor"]["choice"]["gathers"] = rank == 2
        state.load_state_dict(saved)
        with pytest.raises(RuntimeError, match="ranks disagree about the compressor's choice") as raised:
            models.train(model, optimizer, state, rank, range(4, 5))
        state.close()
        return str(raised.value)

    assert all("load the state of the same iteration" in told for told in run_ranks(rank_main, world_size=3))


def test_a_run_takes_what_its_link_favours() -> None:
    """A slow link the one with fewer bytes, one of long latency that with one collective less."""

    def rank_main(rank: int, mbit_per_s: float, latency_ms: float) -> tuple[float, list[bytes]]:
        link = LinkEmulation(mbit_per_s=mbit_per_s, latency_ms=latency_ms)
        model, optimizer, state = models.new_run(
            mqgrad.FixedBits(8, interval=5), compressor=MEASURED, link=link
        )
        gradients = models.train(model, optimizer, state, rank, range(40))
        state.close()
        return state.compressor.figures()["gathered_share"], gradients

    cases = [(1.0, 0.0), (1000.0, 15.0)]
    slow, far = run_cases(rank_main, cases, 3, timeout=120.0).values()
    assert all(share < 0.4 for share, _ in slow)
    assert all(share > 0.6 for share, _ in far)
    for results in (slow, far):
        assert len({tuple(gradients) for _, gradients in results}) == 1
