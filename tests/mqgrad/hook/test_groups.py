"""Ranks that are a part of a job's: messages name them as the job does, and states know which they are of."""

import models
import pytest
import torch.distributed as dist
from ranks import run_ranks

import mqgrad
from mqgrad.collectives.named_work import described_rank


def pair_of(rank: int) -> dist.ProcessGroup:
    return [dist.new_group([0, 1]), dist.new_group([2, 3])][rank // 2]


def test_a_disagreement_names_ranks_as_the_job_does() -> None:
    def rank_main(rank: int) -> str:
        pair, controller = pair_of(rank), mqgrad.FixedBits([4, 4, 4, 2][rank])
        state = mqgrad.CompressionState(controller, process_group=pair, timeout_seconds=20)
        ddp = models.compressed_ddp(models.small_model(), state, process_group=pair)
        try:
            models.backward(ddp, rank, 0)
        except RuntimeError as error:
            return str(error)
        finally:
            state.close()
        return ""

    told = run_ranks(rank_main, world_size=4)
    assert told[:2] == ["", ""]
    for rank in (2, 3):
        assert "(rank 2: 4, rank 3: 2)" in told[rank]
        assert f"seen by rank {rank}" in told[rank]


def test_who_waits_in_vain_is_named_as_the_job_does() -> None:
    def rank_main(rank: int) -> str:
        pair = pair_of(rank)
        state = mqgrad.CompressionState(mqgrad.FixedBits(4), process_group=pair, timeout_seconds=10)
        ddp = models.compressed_ddp(models.small_model(), state, process_group=pair)
        try:
            if rank != 3:
                models.backward(ddp, rank, 0)
        except RuntimeError as error:
            return str(error)
        finally:
            state.close()
        return ""

    told = run_ranks(rank_main, world_size=4)
    assert "rank 2 of ranks 2, 3 waited in vain for rank 3" in told[2]
    assert told[0] == told[1] == ""


def test_a_construction_that_waited_in_vain_may_be_tried_again() -> None:
    """A rank that came late took the first try of the other for its second, and so on for ever."""

    def rank_main(rank: int) -> None:
        pair = pair_of(rank)
        if rank == 2:
            with pytest.raises(RuntimeError, match="the construction of a CompressionState"):
                mqgrad.CompressionState(mqgrad.FixedBits(4), process_group=pair, timeout_seconds=1)
        dist.barrier()
        mqgrad.CompressionState(mqgrad.FixedBits(4), process_group=pair, timeout_seconds=20).close()

    run_ranks(rank_main, world_size=4)


def test_a_state_of_another_groups_rank_is_refused() -> None:
    """By its place in the group alone rank 2 is like rank 0, and files are named by the job's ranks."""

    def rank_main(rank: int) -> str:
        state = mqgrad.CompressionState(None, process_group=pair_of(rank))
        saved: list[object] = [state.state_dict() if rank == 0 else None]
        dist.broadcast_object_list(saved)
        try:
            state.load_state_dict(saved[0])
        except ValueError as error:
            return str(error)
        finally:
            state.close()
        return ""

    told = run_ranks(rank_main, world_size=4)
    assert told[0] == ""
    assert "the state is rank 0's" in told[1]
    for rank in (2, 3):
        assert f"rank {rank}: the state was saved with" in told[rank]
        assert "ranks=2+3" in told[rank]


def test_of_many_ranks_some_are_named() -> None:
    assert described_rank(range(4, 516), 1) == "rank 5 of ranks 4, 5, 6, 7, …, 515"
    assert described_rank(range(512), 1) == "rank 1 of 512"
