"""Top-k, DGC and Sketched SGD against their formulas, on two real ranks."""

import math
from concurrent.futures import ThreadPoolExecutor

import averages
import models
import pytest
import torch
from ranks import run_ranks

import mqgrad
from mqgrad.compressors.base import BucketWork, Step
from mqgrad.compressors.sketched_sgd import CountSketch, SketchedSGD, _median
from mqgrad.compressors.top_k import TopK
from mqgrad.costs import Costs
from mqgrad.layout import Layout
from mqgrad.trainers.clusters.in_process import InProcessTransport, MeetingPoint

WIDTH = 1200


def gradients(iteration: int) -> list[torch.Tensor]:
    return [
        torch.randn(WIDTH, generator=torch.Generator().manual_seed(2 * iteration + rank)).exp()
        for rank in range(2)
    ]


def applied(spec: str, iterations: int, bad: dict | None = None) -> list[list[torch.Tensor]]:
    """What each rank applies when rank r's gradient of iteration i is ``gradients(i)[r]``."""

    def rank_main(rank: int):
        model = torch.nn.Linear(WIDTH, 1, bias=False)
        state = mqgrad.CompressionState(mqgrad.FixedBits(32), compressor=spec)
        ddp = models.compressed_ddp(model, state)
        results = []
        for iteration in range(iterations):
            model.zero_grad()
            x = gradients(iteration)[rank]
            if bad and (iteration, rank) in bad:
                x[7] = bad[iteration, rank]
            ddp(x[None]).sum().backward()
            results.append(model.weight.grad[0].numpy().copy())
        state.close()
        return results

    return [[torch.from_numpy(gradient) for gradient in rank] for rank in run_ranks(rank_main)]


def without_smallest(v: torch.Tensor, k: int) -> torch.Tensor:
    kept = torch.zeros_like(v)
    where = v.abs().topk(k).indices
    kept[where] = v[where]
    return kept


def test_top_k_is_its_formula() -> None:
    results = applied("top-k:0.05", 5)
    memory = [torch.zeros(WIDTH)] * 2
    for iteration in range(5):
        sent = []
        for rank, gradient in enumerate(gradients(iteration)):
            v = gradient + memory[rank]
            sent.append(without_smallest(v, 60))
            memory[rank] = v - sent[rank]
        for rank in range(2):
            torch.testing.assert_close(results[rank][iteration], (sent[0] + sent[1]) / 2)


def test_dgc_is_its_formula() -> None:
    """Momentum correction, factor masking, clipping and two stages of warm-up."""
    spec = "dgc:0.05,momentum=0.5,clip=20,warmup_iterations=4"
    results = applied(spec, 5)
    velocity, accumulated = [torch.zeros(WIDTH)] * 2, [torch.zeros(WIDTH)] * 2
    for iteration, share in enumerate([1 / 4, 1 / 16, 1 / 64, 1 / 256, 0.05]):
        sent = []
        for rank, gradient in enumerate(gradients(iteration)):
            u = 0.5 * velocity[rank] + gradient * min(1.0, 20 * math.sqrt(2) / float(gradient.norm()))
            v = accumulated[rank] + u
            sent.append(without_smallest(v, math.ceil(max(share, 0.05) * WIDTH)))
            unsent = sent[rank] == 0
            velocity[rank], accumulated[rank] = u * unsent, v * unsent
        torch.testing.assert_close(results[0][iteration], (sent[0] + sent[1]) / 2)
        assert torch.equal(results[0][iteration], results[1][iteration])


def test_sketched_sgd_applies_exact_sums_of_heavy_hitters() -> None:
    """With a sketch large enough, what is applied is what the exact sum's largest elements would be."""
    results = applied("sketched-sgd:0.02,candidates=8", 4)
    velocity, accumulated = torch.zeros(WIDTH), torch.zeros(WIDTH)
    for iteration in range(4):
        assert torch.equal(results[0][iteration], results[1][iteration])
        velocity = 0.9 * velocity + sum(gradients(iteration)) / 2
        accumulated = accumulated + velocity
        got = results[0][iteration]
        where = got.nonzero().flatten()
        assert len(where) == math.ceil(0.02 * WIDTH)
        torch.testing.assert_close(got[where], accumulated[where])
        best = without_smallest(accumulated, len(where))
        assert got.norm() > 0.7 * best.norm()
        velocity[where] = accumulated[where] = 0.0


@pytest.mark.parametrize("spec", ["top-k:0.05", "dgc:0.05", "gravac:least_gain=0.1", "sketched-sgd:0.02"])
def test_an_overflow_is_seen_by_all_and_remembered_by_none(spec: str) -> None:
    bad = {(1, 1): float("inf")}
    results = applied(spec, 4, bad)
    finite = [[bool(g.isfinite().all()) for g in rank] for rank in results]
    assert finite == [[True, False, True, True]] * 2


@pytest.mark.parametrize("spec", ["top-k:0.05", "dgc:0.05,momentum=0", "sketched-sgd:0.02,momentum=0"])
def test_what_a_half_precision_bucket_cannot_hold_is_remembered(spec: str) -> None:
    """A memory outgrows float16 long before a gradient does: it stays as it was, until a loss scaler steps back."""

    def rank_main(rank: int) -> tuple[list[bool], bool]:
        model = torch.nn.Linear(WIDTH, 1, bias=False).half()
        compressor = mqgrad.make_compressor(spec)
        state = mqgrad.CompressionState(mqgrad.FixedBits(32), compressor=compressor)
        ddp = models.compressed_ddp(model, state)
        memory = compressor.memory if spec.startswith("top-k") else compressor.accumulated
        finite, kept = [], []
        for _ in range(4):
            model.zero_grad()
            ddp(torch.full((1, WIDTH), 3e4).half()).sum().backward()
            finite.append(bool(model.weight.grad.isfinite().all()))
            kept += memory.state_dict().values()
        state.close()
        return finite, torch.equal(kept[1], kept[3])

    # The third time, 9e4 are to be sent.
    assert run_ranks(rank_main) == [([True, True, False, False], True)] * 2


def test_what_rounding_would_give_a_larger_sketch_is_not_sketched() -> None:
    sketched = SketchedSGD(0.02, min_numel=0)  # ten columns, five rows: a sketch as large as its parameter
    large = [numel for numel in range(120) if sketched._is_large(torch.zeros(numel))]
    assert large == [50, 100]


@pytest.mark.parametrize("index", [-1, 1024, 2**31 - 1, -(2**31)])
def test_an_index_outside_the_vector_is_refused_and_changes_nothing(index: int) -> None:
    none = torch.empty(0, dtype=torch.int64)
    layout = Layout(
        keys=(0,),
        numels=(1024,),
        offsets=(0,),
        numel=1024,
        shard_numel=512,
        bucket_ids=torch.arange(2),
        padding=none,
    )
    compressor = TopK(ratio=2 / 1024)
    memory = compressor.memory.flat(layout).fill_(0.25)
    gradient = torch.linspace(-1, 1, 1024)
    meeting_point = MeetingPoint(2, timeout_seconds=60)
    step = Step(InProcessTransport(meeting_point, 0), 32, 0, 7, Costs(), measure=False)
    hostile = torch.cat(
        [torch.ones(2).view(torch.uint8), torch.tensor([3, index], dtype=torch.int32).view(torch.uint8)]
    )
    with ThreadPoolExecutor(1) as threads:
        peer = threads.submit(InProcessTransport(meeting_point, 1).all_gather, hostile)
        with pytest.raises(IndexError, match="out of range"):
            compressor.start_average_(BucketWork(gradient, [gradient], layout), step).wait()
        peer.result()
    assert torch.equal(gradient, torch.linspace(-1, 1, 1024))
    assert bool((memory == 0.25).all())


def test_a_count_sketch_is_linear_and_finds_heavy_hitters() -> None:
    x, y = torch.randn(2, 5000, generator=torch.Generator().manual_seed(0)) / 100
    x[17], x[4000] = 5.0, -4.0
    sketch = CountSketch(5000, 5, 200, seed=3, device=x.device)
    torch.testing.assert_close(sketch.table(x) + sketch.table(y), sketch.table(x + y))
    estimate = sketch.estimate(sketch.table(x))
    assert set(estimate.abs().topk(2).indices.tolist()) == {17, 4000}
    assert estimate[17] == pytest.approx(5.0, abs=0.3)


@pytest.mark.parametrize("rows", [1, 3, 5, 7])
def test_the_median_of_a_sketch_is_torchs(rows: int) -> None:
    x = torch.randn(rows, 3000, generator=torch.Generator().manual_seed(rows))
    x[:, :100] = x[:, :100].round()  # with equal ones
    assert torch.equal(_median(list(x)), x.median(dim=0).values)


@pytest.mark.parametrize(
    ("law", "least"),
    [(torch.distributions.StudentT(3.0), 0.9), (torch.distributions.Laplace(0.0, 1.0), 0.75)],
    ids=["Student", "Laplace"],
)
def test_a_sketch_of_the_default_size_keeps_most_of_the_energy_of_the_largest_elements(
    law: torch.distributions.Distribution, least: float
) -> None:
    numel, k = 100_000, 1000
    torch.manual_seed(0)
    x = law.sample((numel,))
    sketch = SketchedSGD(k / numel)._sketch_of(0, x, seed=3)
    assert sketch.numel_table == 5 * 10 * k
    candidates = sketch.estimate(sketch.table(x)).abs().topk(4 * k).indices
    applied = x[candidates].abs().topk(k).values
    assert applied.square().sum() > least * x.abs().topk(k).values.square().sum()


def test_a_sketch_is_where_the_gradient_is() -> None:
    """As a model that moves to a GPU between two backwards."""
    sketched = SketchedSGD(0.01)
    devices = [
        sketched._sketch_of(0, torch.zeros(1000, device=device), seed=3).device for device in ("cpu", "meta")
    ]
    assert [device.type for device in devices] == ["cpu", "meta"]


@pytest.mark.parametrize(
    ("spec", "most"),
    [("top-k:0.01", 0.025), ("dgc:0.01", 0.025), ("sketched-sgd:0.01,columns=2", 0.25)],
)
def test_bytes_are_those_of_the_elements(spec: str, most: float) -> None:
    """As a share of the fp32 gradient: an all-gather of two ranks sends one payload each, of 8 bytes an element."""

    def rank_main(rank: int):
        model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.Linear(256, 4))
        sent = averages.means(spec, 32, rank, model=model)[1].totals.wire_bytes - averages.AGREEMENT_BYTES
        return sent / (4 * sum(p.numel() for p in model.parameters()))

    shares = run_ranks(rank_main)
    assert all(0.01 < share < most for share in shares)


@pytest.mark.parametrize("spec", ["top-k:0.05", "dgc:0.05", "sketched-sgd:0.03,columns=2"])
def test_training_makes_progress(spec: str) -> None:
    def rank_main(rank: int):
        model = models.small_model()
        state = mqgrad.CompressionState(mqgrad.FixedBits(32), compressor=spec)
        ddp = models.compressed_ddp(model, state)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9 if spec[0] == "t" else 0.0)
        losses = []
        for iteration in range(100):
            optimizer.zero_grad()
            loss = models.backward(ddp, rank, iteration % 20)
            optimizer.step()
            losses.append(loss.item())
        state.close()
        return sum(losses[:10]), sum(losses[-10:])

    first, last = run_ranks(rank_main)[0]
    assert last < 0.9 * first


def test_a_parameter_that_is_averaged_no_more_leaves_no_sketch() -> None:
    sketched = SketchedSGD(0.01)
    for key in (0, 1):
        sketched._sketch_of(key, torch.zeros(1000), seed=3)
    sketched.forget({0})
    assert list(sketched.hashes) == [1]
