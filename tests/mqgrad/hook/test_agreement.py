"""Ranks that are not in step: every one of them gets an error that names ranks and values."""

import copy
import math

import models
import pytest
import torch
import torch.distributed as dist
from ranks import run_ranks
from scripted import Scripted

import mqgrad


def disagreement(make_state) -> list[str]:
    """The error that each rank's training thread gets from a first iteration."""

    def rank_main(rank: int):
        model = models.small_model()
        state = make_state(rank)
        ddp = models.compressed_ddp(model, state)
        try:
            models.backward(ddp, rank, 0)
        except RuntimeError as error:
            return str(error)
        finally:
            state.close()
        return "no error"

    return run_ranks(rank_main)


def test_ranks_with_different_widths_are_detected_before_anything_is_sent() -> None:
    def make_state(rank: int):
        state = mqgrad.CompressionState(None)
        state.set_width(2 if rank == 0 else 8)
        return state

    for message in disagreement(make_state):
        assert "bit width (rank 0: 2, rank 1: 8)" in message
        assert "every rank" in message


@pytest.mark.parametrize("widths", [(32, 4), (4, 32)])
def test_a_rank_whose_plain_bucket_is_under_way_gets_the_named_error(widths) -> None:
    def make_state(rank: int):
        state = mqgrad.CompressionState(None)
        state.set_width(widths[rank])
        return state

    for message in disagreement(make_state):
        assert f"bit width (rank 0: {widths[0]}, rank 1: {widths[1]})" in message


def test_ranks_that_send_a_plain_bucket_and_disagree_are_told() -> None:
    def make_state(rank: int):
        state = mqgrad.CompressionState(None, seed=rank)
        state.set_width(32)
        return state

    for message in disagreement(make_state):
        assert "disagree about the configuration" in message


def test_one_rank_that_leaves_width_32_is_detected() -> None:
    def rank_main(rank: int):
        model, optimizer, state = models.new_run(None)
        state.set_width(32)
        models.train(model, optimizer, state, rank, range(2))
        if rank == 0:
            state.set_width(4)
        with pytest.raises(RuntimeError, match=r"bit width \(rank 0: 4, rank 1: 32\)"):
            models.train(model, optimizer, state, rank, range(1))
        state.close()

    run_ranks(rank_main)


def test_a_rank_that_did_not_load_its_state_is_detected() -> None:
    def rank_main(rank: int):
        model, optimizer, state = models.new_run(mqgrad.FixedBits(4, interval=2))
        models.train(model, optimizer, state, rank, range(3))
        saved = state.state_dict()
        state.close()
        model, optimizer, state = models.new_run(mqgrad.FixedBits(4, interval=2))
        if rank == 0:
            state.load_state_dict(saved)
        with pytest.raises(RuntimeError, match=r"iteration \(rank 0: 3, rank 1: 0\)"):
            models.train(model, optimizer, state, rank, range(1))
        state.close()

    run_ranks(rank_main)


def test_ranks_with_different_configuration_are_detected() -> None:
    for message in disagreement(
        lambda rank: mqgrad.CompressionState(compressor=mqgrad.Quantized(bucket_size=512 if rank else 256))
    ):
        assert "disagree about the configuration" in message


def test_ranks_with_another_torch_are_detected_and_it_is_not_saved(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its build may differ."""

    def make_state(rank: int):
        monkeypatch.setattr(torch, "__version__", f"2.{77 + rank}.0+build{rank}")
        state = mqgrad.CompressionState(mqgrad.FixedBits(4))
        assert "torch" not in state.state_dict()["config"]
        return state

    for rank, message in enumerate(disagreement(make_state)):
        assert "disagree about the configuration" in message
        assert f"torch=2.{77 + rank}.0]" in message
        assert "by the same versions of mqgrad and torch" in message


def test_ranks_in_different_iterations_are_detected() -> None:
    def make_state(rank: int):
        state = mqgrad.CompressionState()
        state.totals.iterations = 7 * rank
        return state

    for message in disagreement(make_state):
        assert "iteration (rank 0: 0, rank 1: 7)" in message


def test_different_intervals_are_detected() -> None:
    def make_state(rank: int):
        return mqgrad.CompressionState(mqgrad.FixedBits(4, interval=2 + rank))

    for message in disagreement(make_state):
        assert "disagree about the configuration" in message


def test_a_rank_that_stops_reporting_is_detected_where_the_interval_ends() -> None:
    def rank_main(rank: int):
        # Its code learns a gain once per interval, in one more collective: ranks must agree on when that is, too.
        model, optimizer, state = models.new_run(mqgrad.FixedBits(4, interval=6))
        models.train(model, optimizer, state, rank, range(12))
        models.backward(model, rank, 12)
        if rank != 0:
            state.step(0.0)
        with pytest.raises(RuntimeError, match=r"reported losses \(rank 0: 5, rank 1: 6, rank 2: 6\)"):
            models.train(model, optimizer, state, rank, range(13, 19))
        state.close()
        return state.totals.iterations

    assert run_ranks(rank_main, world_size=3) == [18] * 3


def test_a_rank_that_stops_reporting_is_detected_though_its_code_learns_within_the_interval() -> None:
    """To learn is a collective: were it due by what a rank has reported, one would wait in it for the other."""

    def rank_main(rank: int) -> None:
        controller = mqgrad.FixedBits(4, interval=24)
        model, optimizer, state = models.new_run(controller, compressor="ecq-sgd", timeout_seconds=20)
        models.train(model, optimizer, state, rank, range(12))
        models.backward(model, rank, 12)
        if rank == 0:
            state.step(0.0)
        with pytest.raises(RuntimeError, match=r"reported losses \(rank 0: 24, rank 1: 23\)"):
            models.train(model, optimizer, state, rank, range(13, 40))
        state.close()

    run_ranks(rank_main)


def test_between_decisions_nothing_but_gradients_is_sent() -> None:
    def rank_main(rank: int):
        model, optimizer, state = models.new_run(mqgrad.FixedBits(32, interval=8))
        sent = []
        for iteration in range(26):
            models.train(model, optimizer, state, rank, range(iteration, iteration + 1))
            state.drain()
            sent.append(state.totals.wire_bytes)
        state.close()
        gradient = sum(parameter.nbytes for parameter in model.parameters())  # 2·(W−1)/W of it, W = 2
        extra = [after - before - gradient for before, after in zip([0.0, *sent], sent, strict=False)]
        return [iteration for iteration, nbytes in enumerate(extra) if nbytes > 0], min(extra)

    # The first three, and what follows an interval of eight.
    assert run_ranks(rank_main) == [([0, 1, 2, 8, 16, 24], 0.0)] * 2


def test_a_refused_state_makes_all_ranks_check_their_agreement_again() -> None:
    def rank_main(rank: int):
        model, optimizer, state = models.new_run(mqgrad.FixedBits(4, interval=6))
        models.train(model, optimizer, state, rank, range(3))
        saved = state.state_dict()
        models.train(model, optimizer, state, rank, range(3, 5))
        if rank == 0:
            saved["format_version"] = -1
            with pytest.raises(ValueError, match="format version"):
                state.load_state_dict(saved)
        else:
            state.load_state_dict(saved)
        with pytest.raises(RuntimeError, match=r"iteration \(rank 0: 5, rank 1: 3\)"):
            models.train(model, optimizer, state, rank, range(5, 6))
        state.close()

    run_ranks(rank_main)


def test_a_rank_that_alone_loads_a_state_is_told_and_nobody_aborts() -> None:
    """What it sends to compare is shorter than the codes of the other."""

    def rank_main(rank: int) -> None:
        model, optimizer, state = models.new_run(mqgrad.FixedBits(4, interval=50), timeout_seconds=3)
        models.train(model, optimizer, state, rank, range(5))
        if rank == 0:
            state.load_state_dict(state.state_dict())
        with pytest.raises(RuntimeError, match="waited in vain for rank"):
            models.train(model, optimizer, state, rank, range(5, 9))
        state.close()

    run_ranks(rank_main)


def test_the_interval_is_that_of_rank_0() -> None:
    class Wavering(Scripted):
        def decide(self, statistics):
            self.interval = 2 + dist.get_rank()
            return super().decide(statistics)

    def rank_main(rank: int):
        model, optimizer, state = models.new_run(Wavering([4, 8, 2]))
        models.train(model, optimizer, state, rank, range(9))
        state.close()
        return state.interval, [seen.iteration for seen in state.controller.seen]

    assert run_ranks(rank_main) == [(2, [2, 4, 6, 8])] * 2


@pytest.mark.parametrize("interval", [0, -3, 2.5, math.nan, math.inf, 2**31])
def test_a_controller_that_decides_on_no_interval_stops_every_rank(interval: float) -> None:
    class Wrong(Scripted):
        def decide(self, statistics):
            self.interval = interval if dist.get_rank() == 0 else 3
            return super().decide(statistics)

    def rank_main(rank: int) -> None:
        model, optimizer, state = models.new_run(Wrong([4]))
        models.train(model, optimizer, state, rank, range(2))
        with pytest.raises(RuntimeError, match=r"decided on an interval of .* must be a whole number"):
            models.train(model, optimizer, state, rank, range(2, 3))
        state.close()

    run_ranks(rank_main)


def test_a_decision_does_not_print_the_controller() -> None:
    """A policy's ``repr`` shows its weights: to make one takes a hundred times as long as to decide."""

    class Unprintable(Scripted):
        def __repr__(self) -> str:
            raise AssertionError("printed")

    def rank_main(rank: int) -> int:
        model, optimizer, state = models.new_run(Unprintable([4, 8]))
        models.train(model, optimizer, state, rank, range(2 * state.interval))
        state.close()
        return len(state.controller.seen)

    assert min(run_ranks(rank_main)) > 0


@pytest.mark.parametrize("period", [1, 2])
@pytest.mark.parametrize("bits", [4, 32])
@pytest.mark.parametrize("decides", ["a controller", "set_width", "begin_interval"])
@pytest.mark.parametrize("size", [{"width": 32}, {"layers": 1}])
def test_ranks_with_models_of_other_sizes_are_told_and_nobody_aborts(
    size: dict[str, int], decides: str, bits: float, period: int
) -> None:
    """A bucket of another length than a rank waits for would make Gloo end its process, at 32 bits."""

    def train(ddp: torch.nn.Module, state: mqgrad.CompressionState, rank: int, width: int) -> None:
        for iteration in range(period):
            x, y = models.batch(rank, iteration, width)
            loss = torch.nn.functional.cross_entropy(ddp(x), y)
            loss.backward()
            state.step(loss)

    def rank_main(rank: int) -> str:
        alone = [dist.new_group([0]), dist.new_group([1])][rank]
        model = models.small_model(**size) if rank else models.small_model()
        ddp = torch.nn.parallel.DistributedDataParallel(model, process_group=alone)
        controller = mqgrad.FixedBits(bits) if decides == "a controller" else None
        state = mqgrad.CompressionState(controller, period=period, timeout_seconds=10)
        if decides == "set_width":
            state.set_width(bits)
        elif decides == "begin_interval":
            state.begin_interval(4, bits)
        ddp.register_comm_hook(state, mqgrad.compression_hook)
        with pytest.raises(RuntimeError) as raised:
            train(ddp, state, rank, model[0][0].in_features)
        state.close()
        return str(raised.value)

    for told in run_ranks(rank_main):
        assert "ranks disagree about the first parameters (rank 0: digest" in told


@pytest.mark.parametrize("period", [1, 2])
@pytest.mark.parametrize("bits", [1, 32])
def test_ranks_of_another_model_each_are_detected(bits: float, period: int) -> None:
    """As where DDP has a group of some ranks, and the state was given none: their gradients were averaged, in rounds
    their moves, from where each rank was."""

    def rank_main(rank: int) -> str:
        alone = [dist.new_group([0]), dist.new_group([1])][rank]
        model = models.small_model()
        with torch.no_grad():
            next(model.parameters()).add_(rank)
        ddp = torch.nn.parallel.DistributedDataParallel(model, process_group=alone)
        state = mqgrad.CompressionState(mqgrad.FixedBits(bits), period=period)
        ddp.register_comm_hook(state, mqgrad.compression_hook)
        with pytest.raises(RuntimeError) as raised:
            models.train(ddp, torch.optim.SGD(model.parameters(), lr=0.1), state, rank, range(4))
        state.close()
        return str(raised.value)

    for told in run_ranks(rank_main):
        assert "ranks disagree about the first parameters (rank 0: digest" in told
        assert "give CompressionState the process_group that DDP has" in told


@pytest.mark.parametrize("bits", [4, 32])
@pytest.mark.parametrize("model_first", [True, False])
@pytest.mark.parametrize("forgets", [True, False])
def test_a_model_that_one_rank_forgets_to_roll_back_is_seen(
    bits: int, model_first: bool, forgets: bool
) -> None:
    """The state and, on both ranks or on one alone, the model of the same time are loaded into a run that goes on."""

    def rank_main(rank: int) -> str:
        ddp, optimizer, state = models.new_run(mqgrad.FixedBits(bits, interval=5))
        models.train(ddp, optimizer, state, rank, range(6))
        saved = copy.deepcopy(ddp.state_dict()), state.state_dict()
        models.train(ddp, optimizer, state, rank, range(6, 12))
        if model_first and not (forgets and rank == 1):
            ddp.load_state_dict(saved[0])
        state.load_state_dict(saved[1])
        if not model_first and not (forgets and rank == 1):
            ddp.load_state_dict(saved[0])
        try:
            models.train(ddp, optimizer, state, rank, range(6, 14))
        except RuntimeError as error:
            return str(error)
        finally:
            state.close()
        return ""

    for told in run_ranks(rank_main):
        assert ("ranks disagree about the first parameters" in told) is forgets, told
