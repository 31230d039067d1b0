"""Signal and noise of the gradient, from sketches and through the hook."""

import models
import pytest
import torch
from layouts import bucket_of
from ranks import run_ranks

import mqgrad
from mqgrad.compressors import make_compressor
from mqgrad.compressors.base import BucketWork
from mqgrad.cuda_ext import SKETCH_SIZE
from mqgrad.hook.gradient_figures import GradientFigures
from mqgrad.hook.layout_table import LayoutTable
from mqgrad.statistics.interval import IntervalStatistics, ParameterStatistics, Trial
from mqgrad.statistics.rank import RankStatistics


def test_signal_and_noise_add_up_to_the_norms() -> None:
    vectors = torch.randn(4, SKETCH_SIZE, generator=torch.Generator().manual_seed(0)) + 1.0
    rows = [
        RankStatistics(losses=[1.0], local_norm_sq=float(v.square().sum()), sketch=v).to_row(1)
        for v in vectors
    ]
    statistics = IntervalStatistics.from_rows(torch.stack(rows), iteration=1, bits=4)
    # A sketch of the identity is exact: S + V/W is the squared norm of the mean.
    mean_norm_sq = float(vectors.mean(dim=0).square().sum())
    assert statistics.mean_norm_sq == pytest.approx(mean_norm_sq)
    assert statistics.rank_norm_sq == pytest.approx(float(vectors.square().sum() / 4))
    assert statistics.gradient_signal == pytest.approx(SKETCH_SIZE, rel=0.2)  # the common ‖1‖²
    assert statistics.gradient_noise == pytest.approx(SKETCH_SIZE / 4, rel=0.2)  # ‖unit Gaussians‖²/W


@pytest.mark.parametrize("cosine", [0.0, -0.5, -1.0])
def test_gradients_that_cancel_leave_the_norm_of_their_mean(cosine: float) -> None:
    gradients = torch.zeros(2, SKETCH_SIZE)
    gradients[0, 0] = gradients[1, 0] = gradients[1, 1] = 2**0.5
    gradients[1, :2] *= torch.tensor([cosine, (1 - cosine**2) ** 0.5])
    rows = [RankStatistics(losses=[1.0], local_norm_sq=2.0, sketch=g).to_row(1) for g in gradients]
    statistics = IntervalStatistics.from_rows(torch.stack(rows), iteration=1, bits=4)
    assert statistics.gradient_signal == pytest.approx(2 * cosine, abs=1e-6)
    assert statistics.mean_norm_sq == pytest.approx(float(gradients.mean(dim=0).square().sum()), abs=1e-6)
    assert statistics.mean_norm_sq >= 0
    assert statistics.rank_norm_sq == pytest.approx(2.0)


def figures_of(gradients: list[torch.Tensor], buckets: list[list[int]]) -> RankStatistics:
    """The figures of gradients whose keys are their places, in DDP buckets of these."""
    table = LayoutTable(bucket_size=512, world_size=2)
    figures, statistics = GradientFigures(0, make_compressor("quantized")), RankStatistics()
    bucket_of(table, gradients)  # numbers them
    for keys in buckets:
        layout, own = bucket_of(table, [gradients[key] for key in keys])
        figures.add(BucketWork(torch.cat([gradients[key].reshape(-1) for key in keys]), own, layout))
    figures.finish(statistics, table.numels)
    return statistics


def test_figures_do_not_depend_on_the_buckets() -> None:
    generator = torch.Generator().manual_seed(0)
    shapes = [(300, 70), (70,), (0,), (1000, 3), (5,), (513,)]
    gradients = [10.0**i * torch.randn(shape, generator=generator) for i, shape in enumerate(shapes)]
    gradients[3] = gradients[3].t()  # as of a parameter that is not contiguous
    one = figures_of(gradients, [[0, 1, 2, 3, 4, 5]])
    for buckets in ([[5, 4], [3], [2], [1, 0]], [[3, 0], [5, 2], [4, 1]]):
        other = figures_of(gradients, buckets)
        assert (other.local_norm_sq, other.peak_energy) == (one.local_norm_sq, one.peak_energy)
        assert torch.equal(other.sketch, one.sketch)
    assert one.local_norm_sq == pytest.approx(sum(float(g.square().sum()) for g in gradients), rel=1e-5)
    parts = [part for g in gradients if g.numel() for part in g.reshape(-1).split(512)]
    peaks = [len(part) * float(part.abs().max()) ** 2 for part in parts]
    assert one.peak_energy == pytest.approx(sum(peaks), rel=1e-5)


@pytest.mark.parametrize("error_feedback", [True, False])
def test_signal_does_not_depend_on_the_width(error_feedback: bool) -> None:
    def rank_main(rank: int):
        found = []
        for bits in (1, 2, 32):
            model = models.small_model()
            state = mqgrad.CompressionState(compressor=mqgrad.Quantized(error_feedback=error_feedback))
            state.begin_interval(1, bits)
            ddp = models.compressed_ddp(model, state)
            state.mark()
            rows = []
            for iteration in range(3):
                model.zero_grad()
                state.step(models.backward(ddp, rank, iteration))
                rows.append(state.take_statistics().to_row(1))
            state.close()
            found.append(torch.stack(rows).numpy())
        return found

    first, second = run_ranks(rank_main)
    signals = []
    for mine, others in zip(first, second, strict=True):
        rows = torch.stack([torch.from_numpy(mine[-1]), torch.from_numpy(others[-1])])
        signals.append(IntervalStatistics.from_rows(rows, iteration=3, bits=4).gradient_signal)
    assert signals[0] == signals[1] == signals[2] != 0


def test_rows_of_parameters_follow_their_keys() -> None:
    statistics = RankStatistics(parameters={1: (3, 4.0, 8.0), 0: (5, 1.0, 2.0)})
    rows = torch.stack([statistics.parameter_rows(), 3 * statistics.parameter_rows()])
    rows[1, :, 0] /= 3
    assert ParameterStatistics.from_rows(rows) == (
        ParameterStatistics(numel=5, norm_sq=2.0, peak_energy=2.0),
        ParameterStatistics(numel=3, norm_sq=8.0, peak_energy=8.0),
    )


def test_waiting_is_that_of_the_rank_which_waits_the_least() -> None:
    """The others wait for it, too."""
    rows = [
        RankStatistics(losses=[1.0, 1.0], step_seconds=2.0, compute_seconds=computed).to_row(2)
        for computed in (0.5, 1.8, 1.0)
    ]
    statistics = IntervalStatistics.from_rows(torch.stack(rows), iteration=2, bits=4)
    assert statistics.waited_seconds == pytest.approx(0.1)


def test_squares_of_moves_are_those_of_an_iteration() -> None:
    """Of the last round, which may have been a shorter one."""
    own = RankStatistics(
        losses=[1.0], local_norm_sq=36.0, peak_energy=72.0, parameters={0: (5, 36.0, 72.0, 9.0, 18.0)}
    )
    rows = torch.stack([own.to_row(1)])
    statistics = IntervalStatistics.from_rows(rows, iteration=6, bits=4, period=6, last_period=3)
    assert (statistics.gradient_signal, statistics.peak_energy, statistics.period) == (4.0, 8.0, 6)
    (parameter,) = ParameterStatistics.from_rows(torch.stack([own.parameter_rows()]), period=3)
    assert (parameter.numel, parameter.norm_sq, parameter.peak_energy) == (5, 4.0, 8.0)
    assert parameter.trials == (Trial(1.0, 2.0),)
