"""CompressionState: what a controller sees and decides, and what is refused."""

import contextlib
import itertools
import math
import types
import warnings
from collections.abc import Callable

import models
import pytest
import torch
import torch.distributed as dist
from ranks import run_cases, run_ranks
from scripted import Scripted

import mqgrad
import mqgrad.hook.iteration_clock
from mqgrad import stopwatch


def test_controller_decides_on_mean_statistics_and_all_ranks_follow() -> None:
    def rank_main(rank: int):
        controller = Scripted([2, 8, 32, 4])
        model, optimizer, state = models.new_run(controller)
        state.mark()
        widths, losses = [], []
        for iteration in range(8):
            optimizer.zero_grad()
            loss = models.backward(model, rank, iteration)
            widths.append(state.bits)
            optimizer.step()
            state.step(loss)
            losses.append(loss.item())
        state.close()
        return widths, losses, [s.losses for s in controller.seen], controller.seen[0]

    results = run_ranks(rank_main)
    for widths, _, seen, _ in results:
        assert widths == [2, 2, 8, 8, 32, 32, 4, 4]
        for i, interval in enumerate(seen):
            expected = [(results[0][1][2 * i + k] + results[1][1][2 * i + k]) / 2 for k in range(2)]
            assert interval == pytest.approx(expected)
    assert results[0][3] == results[1][3]
    first = results[0][3]
    assert first.bits == 2
    assert first.iteration == 2
    assert first.wire_bytes > 0
    assert 0 < first.compute_seconds <= first.step_seconds * 1.001
    assert first.gradient_noise > 0
    assert first.noise_of_mean(2) > first.noise_of_mean(4) > 0


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("bits", "compressor"), [(4, "quantized"), (32, "quantized"), (4, "quantized:topology=star")]
)
def test_it_can_be_closed_after_the_script_has_destroyed_all_groups(bits: int, compressor: str) -> None:
    """Though the last step has ended an interval, and the next is being decided on."""

    def rank_main(rank: int):
        warnings.simplefilter("error")
        controller = mqgrad.FixedBits(bits, interval=5)
        model, optimizer, state = models.new_run(controller, compressor=mqgrad.make_compressor(compressor))
        models.train(model, optimizer, state, rank, range(10))
        dist.destroy_process_group()
        state.close()
        state.close()

    run_ranks(rank_main)


def test_a_fixed_width_exchanges_statistics_soon_and_then_rarely() -> None:
    def rank_main(rank: int):
        model, optimizer, state = models.new_run(mqgrad.FixedBits(32))
        seen = []
        for iteration in range(112):
            models.train(model, optimizer, state, rank, range(iteration, iteration + 1))
            state.drain()
            seen.append(state.last_statistics.iteration if state.last_statistics is not None else 0)
        state.close()
        return seen

    for seen in run_ranks(rank_main):
        assert seen == [0] * 9 + [10] * 100 + [110] * 3


def test_the_first_decision_may_come_before_a_whole_interval() -> None:
    def rank_main(rank: int):
        controller = Scripted([2, 8, 32, 4], opening=1)
        model, optimizer, state = models.new_run(controller)
        state.mark()
        widths = []
        for iteration in range(6):
            models.train(model, optimizer, state, rank, [iteration])
            widths.append(state.bits)
        state.close()
        return (
            widths,
            [len(s.losses) for s in controller.seen],
            [s.gradient_noise > 0 for s in controller.seen],
        )

    for widths, lengths, measured in run_ranks(rank_main):
        assert widths == [2, 8, 8, 32, 32, 4]
        assert lengths == [1, 2, 2]
        assert all(measured)


def test_the_first_decision_sees_the_same_iterations_whether_or_not_the_clock_was_started() -> None:
    """An environment starts the clock, a plain DDP script does not: a policy must see the same of both."""

    def rank_main(rank: int):
        intervals = []
        for starts_clock in (True, False):
            controller = Scripted([4, 8])
            model, optimizer, state = models.new_run(controller)
            if starts_clock:
                state.mark()
            models.train(model, optimizer, state, rank, range(2))
            state.close()
            intervals.append(controller.seen[0])
        return intervals

    for marked, unmarked in run_ranks(rank_main):
        assert unmarked.iteration == marked.iteration == 2
        assert unmarked.losses == pytest.approx(marked.losses)
        assert unmarked.wire_bytes == marked.wire_bytes
        assert unmarked.gradient_noise == pytest.approx(marked.gradient_noise)
        assert 0 < unmarked.compute_seconds <= unmarked.step_seconds


def test_a_first_iteration_that_was_not_timed_counts_as_long_as_the_second() -> None:
    def rank_main(rank: int):
        ticks = itertools.count(100.0, 1.0)  # a second passes between any two looks at this clock
        mqgrad.hook.iteration_clock.time = types.SimpleNamespace(perf_counter=lambda: next(ticks))
        controller = Scripted([4, 8])
        model, optimizer, state = models.new_run(controller)
        models.train(model, optimizer, state, rank, range(2))
        state.close()
        return controller.seen[0].step_seconds, len(controller.seen[0].losses)

    assert run_ranks(rank_main) == [(1.0, 2)] * 2


def test_rank_zero_decides_when_controllers_differ() -> None:
    def rank_main(rank: int):
        class Opinionated(Scripted):
            def decide(self, statistics):
                return 4 if rank == 0 else 8

        model, optimizer, state = models.new_run(Opinionated([2]))
        models.train(model, optimizer, state, rank, range(6))
        bits = state.bits
        state.close()
        return bits

    assert run_ranks(rank_main) == [4, 4]


def test_no_sync_accumulates_and_skips_the_hook() -> None:
    def rank_main(rank: int):
        model, _, state = models.new_run(mqgrad.FixedBits(32))
        for micro in range(4):
            with model.no_sync() if micro < 3 else contextlib.nullcontext():
                models.backward(model, rank, micro)
        got = models.gradient_of(model)
        iterations = state.totals.iterations
        state.close()
        reference = models.small_model()
        for other in range(2):
            for micro in range(4):
                models.backward(reference, other, micro)
        torch.testing.assert_close(got, models.gradient_of(reference) / 2)
        return iterations

    assert run_ranks(rank_main) == [1, 1]


def test_a_hook_registered_twice_and_wrong_arguments_are_refused() -> None:
    def rank_main(rank: int):
        model, _, state = models.new_run(mqgrad.FixedBits(4))
        with pytest.raises(RuntimeError, match="register_comm_hook"):
            model.register_comm_hook(state, mqgrad.compression_hook)
        for call in (
            lambda: state.set_width(8),
            state.take_statistics,
            lambda: state.begin_interval(5, 8),
        ):
            with pytest.raises(RuntimeError, match=r"on rank 0.*FixedBits, decides"):
                call()
        with pytest.raises(ValueError, match="rounding 'up'"):
            mqgrad.CompressionState(compressor="quantized:rounding=up")
        other = mqgrad.CompressionState(mqgrad.FixedBits(4), compressor="quantized:bucket_size=64")
        with pytest.raises(ValueError, match=r"rank 0.*bucket_size=512.*bucket_size=64"):
            other.load_state_dict(state.state_dict())
        other.close()
        state.close()
        own = mqgrad.CompressionState()
        for call in (lambda: own.set_width(9), lambda: own.begin_interval(5, 9)):
            with pytest.raises(ValueError, match="width 9"):
                call()
        own.close()

    run_ranks(rank_main, world_size=1)


def test_an_interval_that_is_no_number_of_iterations_is_refused() -> None:
    def rank_main(rank: int, interval: object) -> None:
        wrong = rf"interval.* {interval!r}: it must be a whole number of iterations, from 1 to 2147483647"
        with pytest.raises(ValueError, match=wrong):
            mqgrad.CompressionState(Scripted([4], interval=interval))
        if interval is not None:
            with pytest.raises(ValueError, match="opening of"):
                mqgrad.CompressionState(Scripted([4], opening=interval))
        state = mqgrad.CompressionState()
        assert state.interval == 10
        state.begin_interval(3, 4)
        with pytest.raises(ValueError, match=f"on rank 0 {interval!r}: it must"):
            state.begin_interval(interval, 4)
        assert state.interval == 3
        state.close()

    run_cases(rank_main, [(0,), (-1,), (2.5,), (math.nan,), (2**31,), ("3",), (None,)], world_size=1)


def test_a_controller_that_fails_is_reported_by_the_training_thread() -> None:
    def rank_main(rank: int):
        class Broken(Scripted):
            def decide(self, statistics):
                raise KeyError("no such width table")

        model, optimizer, state = models.new_run(Broken([2]))
        state.mark()
        with pytest.raises(RuntimeError, match="no such width table"):
            models.train(model, optimizer, state, rank, range(4))
        state.close()

    run_ranks(rank_main)


def test_a_state_may_be_closed_twice() -> None:
    """As by a script's own last line and by what cleans up behind it."""

    def rank_main(rank: int) -> None:
        model, optimizer, state = models.new_run(mqgrad.FixedBits(4))
        models.train(model, optimizer, state, rank, range(1))
        state.close()
        state.close()

    run_ranks(rank_main)


def test_without_a_process_group_the_remedy_is_named() -> None:
    with pytest.raises(RuntimeError, match="init_process_group"):
        mqgrad.CompressionState()


def test_figures_are_those_of_one_iteration_however_long_nobody_asks_for_them() -> None:
    def rank_main(rank: int):
        model = models.small_model()
        state = mqgrad.CompressionState()
        state.begin_interval(2, 32)
        ddp = models.compressed_ddp(model, state)
        norms = []
        state.mark()
        for _ in range(6):
            model.zero_grad()
            state.step(models.backward(ddp, rank, 0))
            norms.append(state._shared.measured.statistics.local_norm_sq)
        state.close()
        return norms

    norms = run_ranks(rank_main)[0]
    assert norms[0] == 0
    assert norms[1] > 0
    assert set(norms[1:]) == {norms[1]}


def test_seconds_that_are_known_late_count_in_their_interval_and_never_for_start_up() -> None:
    """On CUDA, seconds between events are read later: here by a stopwatch that tells them when it settles."""

    def rank_main(rank: int) -> list[tuple[float, float]]:
        late: list[Callable[[], None]] = []
        ticks = itertools.count(100.0, 1.0)  # an iteration takes a second
        mqgrad.hook.iteration_clock.time = types.SimpleNamespace(perf_counter=lambda: next(ticks))
        model, optimizer, state = models.new_run(Scripted([4, 4]))

        def since(start: stopwatch.Mark, add: Callable[[float], None]) -> None:
            seconds = 1000.0 if state.totals.iterations == 0 else 0.25
            late.append(lambda: add(seconds))

        def settle() -> None:
            while late:
                late.pop(0)()

        stopwatch.since, stopwatch.settle = since, settle
        models.train(model, optimizer, state, rank, range(4))
        state.close()
        return [(s.compute_seconds, s.encode_seconds) for s in state.controller.seen]

    for first, second in run_ranks(rank_main):
        assert first[0] == second[0] == 0.75  # of a second, what the last bucket did not wait
        assert first[1] == second[1] > 0


class WithEmptyParameter(torch.nn.Module):
    """One without elements. If its gradient is ready last it has a DDP bucket of its own, else it joins another."""

    def __init__(self, is_last: bool) -> None:
        super().__init__()
        if is_last:
            self.empty = torch.nn.Parameter(torch.empty(0))
        self.layers = models.small_model(layers=1)
        if not is_last:
            self.empty = torch.nn.Parameter(torch.empty(0))
        self.is_last = is_last

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.is_last:
            return self.layers(x + self.empty.sum())
        return self.layers(x) + self.empty.sum()


CONTROLLERS = ["fixed:1/4", "fixed:1", "fixed:4", "fixed:32", "l-greco:interval=2"]
CASES = list(itertools.product(CONTROLLERS, [1, 2], [False, True]))


@pytest.fixture(scope="module", params=[1, 2], ids="world_size={}".format)
def with_an_empty_bucket(request: pytest.FixtureRequest) -> dict[tuple, tuple]:
    """The parameters at the end, whether a bucket was empty, and the iterations; by case and rank."""

    def rank_main(rank: int, controller: str, period: int, is_last: bool) -> tuple[bytes, bool, int]:
        state = mqgrad.CompressionState(mqgrad.make_controller(controller), period=period)
        ddp = models.compressed_ddp(WithEmptyParameter(is_last), state, bucket_cap_mb=1e-6)
        optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
        numels: list[int] = []
        reduce_bucket = state.reduce_bucket

        def noted(bucket):
            numels.append(bucket.buffer().numel())
            return reduce_bucket(bucket)

        state.reduce_bucket = noted  # type: ignore[method-assign]
        models.train(ddp, optimizer, state, rank, range(6))
        state.drain()
        iterations = state.totals.iterations
        state.close()
        return models.parameters_of(ddp).numpy().tobytes(), 0 in numels, iterations

    return run_cases(rank_main, CASES, request.param)


@pytest.mark.parametrize(("controller", "period", "is_last"), CASES)
def test_a_bucket_may_be_empty(
    with_an_empty_bucket: dict[tuple, tuple], controller: str, period: int, is_last: bool
) -> None:
    first, *others = with_an_empty_bucket[controller, period, is_last]
    assert others == [first] * len(others)
    assert first[1:] == (is_last, 6)
