"""Error feedback through changes of the width: nothing is lost, and what is owed stays bounded."""

import models
import pytest
import torch
from ranks import run_ranks
from scripted import Scripted

import mqgrad
from mqgrad.codecs.codec import codec_at
from mqgrad.codecs.vector_codec import Feedback
from mqgrad.compressors.feedback import FeedbackGain
from mqgrad.compressors.two_way_feedback import TwoWayFeedback


@pytest.mark.parametrize("rounding", ["nearest", "stochastic"])
def test_feedback_stays_bounded_and_loses_nothing_through_width_changes(rounding) -> None:
    """The sum of what was applied plus what feedback still holds is the sum of the exact means."""

    def rank_main(rank: int):
        controller = Scripted([1, 2, 1, 4, 2, 1])
        model = torch.nn.Linear(1024, 4, bias=False)
        state = mqgrad.CompressionState(controller, compressor=mqgrad.Quantized(rounding=rounding))
        ddp = models.compressed_ddp(model, state)
        state.mark()
        applied, exact, norms = 0.0, 0.0, []
        for iteration in range(120):
            both = [
                torch.randn(1, 1024, generator=torch.Generator().manual_seed(2 * iteration + r))
                for r in range(2)
            ]
            model.zero_grad()
            loss = ddp(both[rank]).sum()
            loss.backward()
            state.step(loss)
            applied = applied + model.weight.grad[0]
            exact = exact + (both[0] + both[1])[0] / 2
            norms.append(((applied - exact).norm() / exact.norm() * (iteration + 1) ** 0.5).item())
        residual = state._checkpoint.saved()["compressor"]["push_feedback"][0][:1024]
        state.close()
        return norms, applied.numpy(), residual.numpy(), exact.numpy()

    (norms, applied, own, exact), (_, _, other, _) = run_ranks(rank_main)
    assert applied + (own + other) / 2 == pytest.approx(exact, abs=1e-3)
    # The backlog in units of one gradient's norm: about constant when stable, exponential when not.
    assert max(norms[60:]) < 40
    assert max(norms[60:]) < 2 * max(norms[:60])


@pytest.mark.parametrize("topology", ["all-gather", "sharded", "star"])
def test_width_32_sends_the_backlog_exactly(topology: str) -> None:
    """In shards that of the means, too, which their owners hold."""

    def rank_main(rank: int):
        model = torch.nn.Linear(700, 3, bias=False)
        state = mqgrad.CompressionState(None, compressor=f"quantized:topology={topology}")
        ddp = models.compressed_ddp(model, state)
        applied, exact = 0.0, 0.0
        for iteration, bits in enumerate([1, 2, 3, 32]):
            state.set_width(bits)
            xs = [
                torch.randn(1, 700, generator=torch.Generator().manual_seed(9 * iteration + r))
                for r in range(3)
            ]
            model.zero_grad()
            ddp(xs[rank]).sum().backward()
            applied = applied + model.weight.grad
            exact = exact + sum(xs) / 3
        state.close()
        return (applied - exact).abs().max().item()

    assert max(run_ranks(rank_main, world_size=3)) < 1e-5


def test_a_backlog_survives_an_overflow_at_width_32() -> None:
    def rank_main(rank: int):
        model = torch.nn.Linear(700, 3, bias=False)
        state = mqgrad.CompressionState(None)
        ddp = models.compressed_ddp(model, state)
        applied, exact = 0.0, 0.0
        for iteration, bits in enumerate([1, 2, 32, 32]):
            state.set_width(bits)
            xs = [
                torch.randn(1, 700, generator=torch.Generator().manual_seed(9 * iteration + r))
                for r in range(2)
            ]
            if iteration == 2:
                xs[1][0, 0] = float("inf")
            model.zero_grad()
            ddp(xs[rank]).sum().backward()
            if model.weight.grad.isfinite().all():  # as a loss scaler does
                applied = applied + model.weight.grad
                exact = exact + (xs[0] + xs[1]) / 2
        state.close()
        return (applied - exact).abs().max().item()

    assert max(run_ranks(rank_main)) < 1e-5


@pytest.mark.parametrize(
    ("world_size", "topology"), [(2, "auto"), (2, "sharded"), (3, "sharded"), (3, "star")]
)
def test_a_backlog_that_fp16_cannot_hold_is_handed_over_bit_by_bit(world_size: int, topology: str) -> None:
    """Also after a step that overflows, which is not applied."""

    def rank_main(rank: int) -> tuple[float, list[int], float]:
        model = torch.nn.Linear(700, 3, bias=False).half()
        state = mqgrad.CompressionState(None, compressor=f"quantized:topology={topology}")
        ddp = models.compressed_ddp(model, state)
        paid, left = torch.zeros(3, 700), []
        for bits, x in ((1, 1.0), (32, float("inf")), *[(32, 1.0)] * 4):
            state.set_width(bits)
            model.zero_grad()
            ddp(torch.full((1, 700), x).half()).sum().backward()
            state.drain()
            if bits == 1:
                owed = owe(state.compressor.feedback, rank, world_size)
            elif x == 1.0:
                paid += model.weight.grad.float() - x
            left.append(state.compressor.num_residuals)
        state.close()
        return owed, left, paid.unique().tolist()

    results = run_ranks(rank_main, world_size=world_size)
    owed = sum(own for own, _, _ in results)
    left = [1, 1, 1, 1, world_size - 2, 0]  # a step pays 65504 at most
    assert results == [(own, left, [pytest.approx(owed, rel=1e-3)]) for own, _, _ in results]


def owe(feedback: TwoWayFeedback, rank: int, world_size: int) -> float:
    """Set what a rank owes, and return what that adds to each element of the mean."""
    for flat in feedback.push._flats.values():
        flat.fill_(1e5 * (rank + 1))
    for residual in feedback.pull._residuals.values():
        residual.values.fill_(1000.0)
    of_means = 1000.0 if feedback.pull._residuals else 0.0
    return 1e5 * (rank + 1) / world_size + of_means / world_size


def test_a_code_learns_its_error_every_ten_iterations_however_long_intervals_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def rank_main(rank: int) -> list[int]:
        learned = []
        monkeypatch.setattr(FeedbackGain, "observe", lambda *_: learned.append(iteration))
        model, optimizer, state = models.new_run(mqgrad.FixedBits(2), compressor="qsgd:error_feedback=true")
        for iteration in range(31):
            models.train(model, optimizer, state, rank, range(iteration, iteration + 1))
        state.close()
        return sorted(set(learned))

    assert run_ranks(rank_main) == [[9, 19, 29]] * 2


def test_a_step_that_overflowed_has_spent_the_residuals_of_all_that_was_finite() -> None:
    """A loss scaler skips it. Where a rank's own sum is not finite, its residual stays; elsewhere it moves on."""

    def rank_main(rank: int):
        model = torch.nn.Linear(1024, 4, bias=False)  # two scale buckets a row
        state = mqgrad.CompressionState(mqgrad.FixedBits(4))
        ddp = models.compressed_ddp(model, state)
        residuals = []
        for iteration in range(2):
            x = torch.randn(1, 1024, generator=torch.Generator().manual_seed(2 * iteration + rank))
            if (iteration, rank) == (1, 1):
                x[0, 0] = float("inf")
            model.zero_grad()
            ddp(x).sum().backward()
            residuals.append(state._checkpoint.saved()["compressor"]["push_feedback"][0])
        state.close()
        return x.expand(4, -1).flatten().numpy(), [r.numpy() for r in residuals], model.weight.grad.numpy()

    for rank, (gradient, (before, after), mean) in enumerate(run_ranks(rank_main)):
        gradient, before, after, mean = map(torch.tensor, (gradient, before, after, mean))
        assert mean[:, :512].isnan().all()
        assert mean[:, 512:].isfinite().all()
        expected = before.clone()
        codec_at(4).encode(gradient, feedback=Feedback(expected, alpha=0.2))
        assert torch.equal(after, expected)
        stays = (after == before).view(4, 2, 512).all(2)
        assert stays.tolist() == [[rank == 1, False]] * 4


@pytest.mark.parametrize("bucket_cap_mb", [25, 0.001], ids=["one bucket", "several"])
@pytest.mark.parametrize(
    ("compressor", "of_few", "of_all"),
    [
        ("quantized", 4, 0),
        ("quantized:topology=sharded", 4, 0),
        ("dgc", 4, 8),
        ("gravac", 4, 8),
        ("gravac:base=top-k", 4, 8),
        ("powersgd", 2, 4),
        ("sketched-sgd", 4, 8),
    ],
)
def test_what_is_frozen_and_left_out_when_ddp_wraps_anew_owes_nothing(
    compressor: str, of_few: int, of_all: int, bucket_cap_mb: float
) -> None:
    """Nor does it keep its old bucket in memory, or 32 bits from going as they are."""

    def rank_main(rank: int) -> tuple[list[int], int, bool, bytes]:
        model, state = models.small_model(), mqgrad.CompressionState(None, compressor=compressor)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def train(iterations: range) -> None:
            ddp = models.compressed_ddp(model, state, bucket_cap_mb=bucket_cap_mb)
            models.train(ddp, optimizer, state, rank, iterations)

        state.set_width(state.compressor.widths[0])
        train(range(4))
        saved = state.state_dict()
        model[:2].requires_grad_(False)
        train(range(4, 7))
        few = [state.compressor.num_residuals]
        state.load_state_dict(saved)  # which owes for all
        train(range(7, 9))
        few.append(state.compressor.num_residuals)
        if state.compressor.widths[-1] == 32:
            state.set_width(32)
        model.requires_grad_(True)
        train(range(9, 12))
        of_all = state.compressor.num_residuals
        state.close()
        return few, of_all, state.compressor.is_plain(32), models.parameters_of(model).numpy().tobytes()

    first, second = run_ranks(rank_main)
    assert first == second
    assert first[:3] == ([of_few] * 2, of_all, of_all == 0)


def test_the_old_bucket_of_what_is_left_out_is_freed() -> None:
    def rank_main(rank: int) -> int:
        model, state = models.small_model(), mqgrad.CompressionState(mqgrad.FixedBits(1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        models.train(models.compressed_ddp(model, state), optimizer, state, rank, range(3))
        model[:3].requires_grad_(False)
        models.train(models.compressed_ddp(model, state), optimizer, state, rank, range(3, 5))
        held = {view.untyped_storage().nbytes() for view in state.compressor.feedback.push._values.values()}
        state.close()
        return sum(held)

    assert run_ranks(rank_main) == [2 * 4 * 512] * 2  # a scale bucket each for a matrix and a bias
