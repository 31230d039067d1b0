"""PowerSGD against PyTorch's own hook, which works with one large bucket, and against algebra."""

import averages
import models
import pytest
import torch
from ranks import run_ranks
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

import mqgrad
from mqgrad.seeding import stream_seed

ITERATIONS = range(6)
START = 2  # PyTorch's hook cannot begin before DDP has regrouped its buckets


def one_large_matrix() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 4))


def train(ddp: nn.Module, rank: int) -> list[torch.Tensor]:
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.5)
    gradients = []
    for iteration in ITERATIONS:
        optimizer.zero_grad()
        models.backward(ddp, rank, iteration)
        gradients.append(models.gradient_of(ddp))
        optimizer.step()
    return gradients


@pytest.mark.parametrize(
    ("matrix_rank", "feedback"),
    [(1, True), (2, True), (4, True), (2, False)],
)
def test_it_does_what_pytorchs_hook_does(matrix_rank: int, feedback: bool) -> None:
    """Error feedback, warm start and all: six iterations, of which PyTorch's begins with the Q that ours draws."""
    spec = f"powersgd:{matrix_rank},start_iteration={START},min_compression_rate=4,error_feedback={feedback}"

    def rank_main(rank: int):
        compressor = mqgrad.make_compressor(spec)
        state = mqgrad.CompressionState(mqgrad.FixedBits(32), compressor=compressor)
        ours = train(models.compressed_ddp(one_large_matrix(), state), rank)
        state.close()

        ddp = DistributedDataParallel(one_large_matrix())
        theirs = PowerSGDState(None, matrix_rank, START, min_compression_rate=4, use_error_feedback=feedback)
        (key,) = compressor.factors
        generator = torch.Generator().manual_seed(stream_seed(0, START, key))
        theirs.q_memory_dict[0] = torch.randn(64, matrix_rank, generator=generator).flatten()
        theirs.p_memory_dict[0] = torch.empty(64 * matrix_rank)
        ddp.register_comm_hook(theirs, powerSGD_hook)
        torch.testing.assert_close(train(ddp, rank), ours, rtol=1e-3, atol=1e-5)

    run_ranks(rank_main)


def test_a_gradient_of_low_rank_arrives_whole() -> None:
    """Two ranks with one example each: their mean has rank 2, whose column space one power iteration finds."""

    def rank_main(rank: int):
        model = nn.Linear(40, 30, bias=False)
        state = mqgrad.CompressionState(mqgrad.FixedBits(32), compressor="powersgd:rank=2")
        ddp = models.compressed_ddp(model, state)
        examples, weights = (torch.randn(2, n, generator=torch.Generator().manual_seed(n)) for n in (40, 30))
        (ddp(examples[rank]) * weights[rank]).sum().backward()
        state.close()
        torch.testing.assert_close(model.weight.grad, weights.T @ examples / 2, rtol=1e-4, atol=1e-5)

    run_ranks(rank_main)


def test_ranks_whose_linear_algebra_may_round_otherwise_are_told() -> None:
    def rank_main(rank: int) -> str:
        torch.get_num_threads = lambda: 1 + rank  # to have several in a forked process may hang
        state = mqgrad.CompressionState(compressor=mqgrad.make_compressor("powersgd"), timeout_seconds=10)
        ddp = models.compressed_ddp(one_large_matrix(), state)
        with pytest.raises(RuntimeError, match="ranks disagree about the compressor's choice") as raised:
            models.backward(ddp, rank, 0)
        state.close()
        return str(raised.value)

    for rank, told in enumerate(run_ranks(rank_main)):
        assert f"{1 + rank} threads of linear algebra: set OMP_NUM_THREADS alike" in told


def test_bytes_are_those_of_the_factors_and_of_what_is_not_compressed() -> None:
    def rank_main(rank: int):
        model = nn.Sequential(nn.Linear(64, 128), nn.Linear(128, 4))
        return averages.means("powersgd:rank=4", 32, rank, model=model)[1].totals.wire_bytes

    # 64 × 128 becomes 4 · (64 + 128); 128 × 4 would not shrink by 2; biases are vectors.
    expected = averages.AGREEMENT_BYTES + 4 * (4 * (64 + 128) + 128 + 128 * 4 + 4)
    assert run_ranks(rank_main) == [expected] * 2


def test_a_parameter_may_be_empty() -> None:
    def rank_main(rank: int):
        model = nn.Sequential(nn.Linear(64, 4))
        model.empty = nn.Parameter(torch.zeros(0, 8))
        state = mqgrad.CompressionState(mqgrad.FixedBits(32), compressor="powersgd")
        ddp = models.compressed_ddp(model, state)
        (ddp(torch.ones(2, 64)).sum() + model.empty.sum()).backward()
        state.close()
        return model[0].bias.grad.tolist()

    assert run_ranks(rank_main) == [[2.0] * 4] * 2


def test_an_overflow_reaches_every_rank_and_is_forgotten() -> None:
    def rank_main(rank: int):
        model = nn.Linear(64, 64, bias=False)
        state = mqgrad.CompressionState(mqgrad.FixedBits(32), compressor="powersgd:1")
        ddp = models.compressed_ddp(model, state)
        finite = []
        for iteration in range(3):
            model.zero_grad()
            x = torch.randn(4, 64)
            if iteration == 1 and rank == 1:
                x[0, 5] = float("inf")
            ddp(x).sum().backward()
            finite.append(bool(model.weight.grad.isfinite().all()))
        state.close()
        return finite

    assert run_ranks(rank_main) == [[True, False, True]] * 2


def test_a_gradient_of_zeros_does_not_stop_later_ones() -> None:
    def rank_main(rank: int):
        model = nn.Linear(64, 64, bias=False)
        state = mqgrad.CompressionState(mqgrad.FixedBits(32), compressor="powersgd:1")
        ddp = models.compressed_ddp(model, state)
        norms = []
        for scale in (0.0, 1.0):
            model.zero_grad()
            (scale * ddp(torch.ones(1, 64)).sum()).backward()
            norms.append(float(model.weight.grad.norm()))
        state.close()
        return norms

    assert run_ranks(rank_main)[0] == pytest.approx([0.0, 64.0])


def test_a_gradient_of_zeros_leaves_a_random_start_to_a_matrix_whose_first_row_and_column_are_zero() -> None:
    """From a Q of zeros, orthonormal columns would be the first unit vectors, and see nothing of such a matrix."""
    matrix = torch.randn(64, 64, generator=torch.Generator().manual_seed(0))
    matrix[0] = matrix[:, 0] = 0.0

    def rank_main(rank: int) -> float:
        model = nn.Linear(64, 64, bias=False)
        state = mqgrad.CompressionState(mqgrad.FixedBits(32), compressor="powersgd:1")
        ddp = models.compressed_ddp(model, state)
        for scale in (0.0, 1.0):
            model.zero_grad()
            (scale * (ddp(torch.eye(64)) * matrix).sum()).backward()
        state.close()
        return float(model.weight.grad.norm())

    assert min(run_ranks(rank_main)) > 1.0


def test_what_a_half_precision_gradient_cannot_hold_is_remembered() -> None:
    """What rank 1 leaves out grows until its turn, and is then more than float16 has: it waits for a smaller one."""
    blocks = torch.zeros(32, 32)
    blocks[:16, :16], blocks[16:, 16:] = 5e4, 3e4

    def rank_main(rank: int) -> tuple[list[bool], bool]:
        model = nn.Linear(32, 32, bias=False).half()
        compressor = mqgrad.make_compressor("powersgd:1")
        state = mqgrad.CompressionState(mqgrad.FixedBits(32), compressor=compressor)
        ddp = models.compressed_ddp(model, state)
        finite, owed = [], []
        for _ in range(6):
            model.zero_grad()
            (ddp(torch.eye(32).half()) * blocks.half()).sum().backward()
            finite.append(bool(model.weight.grad.isfinite().all()))
            owed += [residual.clone() for residual in compressor.residuals.values()]
        state.close()
        return finite, torch.equal(owed[-1], owed[-2])

    for finite, kept in run_ranks(rank_main):
        assert finite == sorted(finite, reverse=True)
        assert (finite[0], finite[-2:], kept) == (True, [False, False], True)
