"""Plain buckets that go from the training thread to the all-reduce: the same means, costs and failures."""

import io
import time
from typing import Any, cast

import models
import pytest
import torch
import torch.distributed as dist
from ranks import run_ranks
from scripted import Scripted
from torch.nn.parallel import DistributedDataParallel

import mqgrad
from mqgrad.hook.direct import DirectAverages
from mqgrad.trainers.clusters.virtual_ranks import VirtualBucket
from mqgrad.trainers.link import LinkEmulation

INTERVAL = 6
ITERATIONS = 4 * INTERVAL


@pytest.fixture
def handed_over(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """For each bucket of this process whether it went directly."""
    ways: list[bool] = []
    takes = DirectAverages.takes

    def noted(self: DirectAverages, bucket: Any) -> bool:
        ways.append(takes(self, bucket))
        return ways[-1]

    monkeypatch.setattr(DirectAverages, "takes", noted)
    return ways


def never(self: DirectAverages, bucket: Any) -> bool:
    return False


def trained(controller: Any, rank: int, **state_args: Any) -> tuple[list[bytes], mqgrad.CompressionState]:
    model, optimizer, state = models.new_run(controller, **state_args)
    state.mark()  # or the first iteration counts as the second, but its wait for ranks that start late in full
    gradients = models.train(model, optimizer, state, rank, range(ITERATIONS))
    state.close()
    return gradients, state


@pytest.mark.parametrize("world_size", [2, 3])
def test_most_iterations_at_32_bits_go_directly_and_give_ddps_means(
    world_size: int, handed_over: list[bool]
) -> None:
    def rank_main(rank: int):
        gradients, _ = trained(mqgrad.FixedBits(32, interval=INTERVAL), rank)
        model = models.small_model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        ddp = DistributedDataParallel(model, bucket_cap_mb=0.02)
        for iteration, found in enumerate(gradients):
            optimizer.zero_grad()
            models.backward(ddp, rank, iteration)
            expected = models.gradient_of(model)
            torch.testing.assert_close(torch.frombuffer(bytearray(found), dtype=torch.float32), expected)
            optimizer.step()
        return gradients, handed_over

    results = run_ranks(rank_main, world_size)
    buckets = [ways for _, ways in results]
    assert all(gradients == results[0][0] for gradients, _ in results)
    per_iteration = 2  # of buckets, but in the first iteration, which has one
    rest = buckets[0][1:]
    assert len(rest) == per_iteration * (ITERATIONS - 1)
    by_iteration = [set(rest[i : i + per_iteration]) for i in range(0, len(rest), per_iteration)]
    assert all(len(ways) == 1 for ways in by_iteration)
    directly = [ways == {True} for ways in by_iteration]
    # Three iterations are checked; each interval begins with a decision and ends with figures.
    expected = [i >= 3 and i % INTERVAL not in (0, INTERVAL - 1) for i in range(1, ITERATIONS)]
    assert directly == expected


def test_means_and_bytes_are_those_of_the_communication_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Through widths that leave residuals, which the first iteration at 32 bits hands over."""

    def rank_main(rank: int):
        widths = [32, 4, 32, 32, 1]
        gradients, state = trained(Scripted(widths, interval=INTERVAL), rank)
        with monkeypatch.context() as patched:
            patched.setattr(DirectAverages, "takes", never)
            expected, by_thread = trained(Scripted(widths, interval=INTERVAL), rank)
        assert gradients == expected
        assert state.totals.wire_bytes == by_thread.totals.wire_bytes
        assert state.totals.iterations == by_thread.totals.iterations == ITERATIONS
        assert state.totals.bit_iterations == by_thread.totals.bit_iterations
        own, theirs = state.last_statistics, by_thread.last_statistics
        assert own is not None
        assert theirs is not None
        assert (own.losses, own.gradient_signal) == (theirs.losses, theirs.gradient_signal)
        assert 0 < state.totals.wire_seconds < state.totals.step_seconds
        return gradients

    first, second = run_ranks(rank_main)
    assert first == second


def test_a_state_saved_between_them_goes_on_with_the_same_gradients() -> None:
    def rank_main(rank: int):
        model, optimizer, state = models.new_run(mqgrad.FixedBits(32, interval=INTERVAL))
        models.train(model, optimizer, state, rank, range(INTERVAL - 2))
        saved = (model.module.state_dict(), optimizer.state_dict(), state.state_dict())
        saved = torch.load(_written(saved), weights_only=True)
        expected = models.train(model, optimizer, state, rank, range(INTERVAL, 2 * INTERVAL))
        state.close()
        model, optimizer, state = models.new_run(mqgrad.FixedBits(32, interval=INTERVAL))
        model.module.load_state_dict(saved[0])
        optimizer.load_state_dict(saved[1])
        state.load_state_dict(saved[2])
        found = models.train(model, optimizer, state, rank, range(INTERVAL, 2 * INTERVAL))
        state.close()
        return found == expected

    assert all(run_ranks(rank_main))


def _written(saved: Any) -> io.BytesIO:
    file = io.BytesIO()
    torch.save(saved, file)
    file.seek(0)
    return file


def test_a_rank_that_does_not_come_is_named(handed_over: list[bool]) -> None:
    def rank_main(rank: int):
        model, optimizer, state = models.new_run(mqgrad.FixedBits(32, interval=100), timeout_seconds=2.0)
        models.train(model, optimizer, state, rank, range(5))
        if rank == 1:
            time.sleep(3)  # for longer than the others wait
            return
        with pytest.raises(RuntimeError, match="rank 0 of 2 waited in vain for another one in an all-reduce"):
            models.train(model, optimizer, state, rank, range(5, 6))
        assert handed_over[-1]
        with pytest.raises(RuntimeError, match="communication stopped after an earlier failure: rank 0 of 2"):
            models.train(model, optimizer, state, rank, range(6, 7))
        with pytest.raises(RuntimeError, match="earlier failure"):
            state.step(1.0)  # of a script that catches what backward raises
        with pytest.raises(RuntimeError, match="earlier failure"):
            state.state_dict()
        state.close()

    run_ranks(rank_main)


def test_a_loaded_state_forgets_an_iteration_that_was_open(handed_over: list[bool]) -> None:
    """One whose backward went wrong behind its first bucket."""

    def rank_main(rank: int):
        model, optimizer, state = models.new_run(mqgrad.FixedBits(32, interval=100))
        models.train(model, optimizer, state, rank, range(5))
        saved = state.state_dict()
        next(model.parameters()).register_hook(_fail)
        with pytest.raises(ArithmeticError):
            models.backward(model, rank, 5)
        assert handed_over[-1]
        state.load_state_dict(saved)
        del handed_over[:]
        ddp = models.compressed_ddp(models.small_model(), state, bucket_cap_mb=0.02)
        state.step(models.backward(ddp, rank, 5))
        state.close()
        return handed_over, models.gradient_of(ddp).numpy().tobytes(), state.totals.iterations

    (first_ways, *first), (second_ways, *second) = run_ranks(rank_main)
    assert not any(first_ways)
    assert not any(second_ways)
    assert first == second
    assert first[-1] == 6


@pytest.mark.parametrize("error", [RuntimeError("it cannot be started"), KeyboardInterrupt()])
def test_what_goes_wrong_while_a_bucket_is_handed_over_leaves_nobody_waiting(
    error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    def rank_main(rank: int):
        def raises(*_: Any) -> None:
            raise error

        model, optimizer, state = models.new_run(mqgrad.FixedBits(32, interval=100))
        models.train(model, optimizer, state, rank, range(5))
        monkeypatch.setattr(state._transport, "start_sum", raises)
        with pytest.raises(type(error)):
            models.backward(model, rank, 5)
        if isinstance(error, RuntimeError):
            with pytest.raises(RuntimeError, match="it cannot be started"):
                state.state_dict()
        else:
            assert state.state_dict()["totals"]["iterations"] == 5
        state.close()

    run_ranks(rank_main)


def test_ctrl_c_while_a_sum_ends_leaves_nobody_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    def rank_main(rank: int):
        def interrupted(*_: Any) -> None:
            raise KeyboardInterrupt

        model, optimizer, state = models.new_run(mqgrad.FixedBits(32, interval=100))
        models.train(model, optimizer, state, rank, range(5))
        monkeypatch.setattr(state._direct, "_end", interrupted)
        with pytest.raises(RuntimeError, match="KeyboardInterrupt"):
            models.backward(model, rank, 5)
        assert state.state_dict()["totals"]["iterations"] == 5
        state.close()

    run_ranks(rank_main)


def test_no_bucket_goes_directly_once_the_state_is_closed() -> None:
    def rank_main(rank: int):
        model, optimizer, state = models.new_run(mqgrad.FixedBits(32, interval=100))
        models.train(model, optimizer, state, rank, range(5))
        state.close()
        with pytest.raises(RuntimeError, match="is closed"):
            models.backward(model, rank, 5)
        state.close()

    run_ranks(rank_main)


def test_of_buckets_without_elements_nothing_is_sent(handed_over: list[bool]) -> None:
    def rank_main(rank: int):
        state = mqgrad.CompressionState(mqgrad.FixedBits(32, interval=100))
        parameters = [torch.zeros(3), torch.zeros(0)]
        means = []
        for _ in range(5):
            buckets = [VirtualBucket(i, i == 1, [parameter]) for i, parameter in enumerate(parameters)]
            for bucket in buckets:
                bucket.buffer().fill_(rank)
            futures = [state.reduce_bucket(cast(dist.GradBucket, bucket)) for bucket in buckets]
            means.append([future.wait().tolist() for future in futures])
            state.step(0.0)
        state.close()
        assert handed_over[-2:] == [True, True]
        return means, state.totals.iterations

    assert run_ranks(rank_main) == [([[[0.5] * 3, []]] * 5, 5)] * 2


@pytest.mark.parametrize("iterations", [110, 150])
def test_layers_may_be_trained_by_turns(iterations: int) -> None:
    """Iterations that go directly were not counted, and layers not looked at in most of them: a second turn was taken
    for that of another model."""

    def rank_main(rank: int) -> None:
        state = mqgrad.CompressionState(mqgrad.FixedBits(32))
        blocks = [torch.nn.Linear(64, 4) for _ in range(2)]
        for block in (blocks[0], blocks[1], blocks[0]):
            ddp = models.compressed_ddp(block, state)
            optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
            models.train(ddp, optimizer, state, rank, range(iterations))
        state.close()

    run_ranks(rank_main)


def _fail(_: torch.Tensor) -> None:
    raise ArithmeticError("as of anything that goes wrong in backward")


def test_on_an_emulated_link_nothing_goes_directly(handed_over: list[bool]) -> None:
    def rank_main(rank: int):
        trained(mqgrad.FixedBits(32, interval=INTERVAL), rank, link=LinkEmulation(mbit_per_s=1000))
        return any(handed_over)

    assert run_ranks(rank_main) == [False, False]
