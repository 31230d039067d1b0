"""Smoothness-aware quantization on logreg with its exact matrices: theory against measurement, and what it saves."""

import functools

import averages
import models
import pytest
import torch
from ranks import run_ranks

import mqgrad
from mqgrad.codecs.smoothness import SmoothQuantizer
from mqgrad.trainers import Distributed, make_workload
from mqgrad.trainers.workloads.logreg import LogisticRegression
from mqgrad.trainers.workloads.smooth import compressor_for

WORKLOAD = LogisticRegression(batch_size=None, mu=0.01)
BUDGET = 16.0


@functools.cache
def shard(rank: int, world_size: int) -> tuple[torch.Tensor, torch.Tensor]:
    features, labels = WORKLOAD.shard(rank, world_size)
    return features.double(), labels.double()


def gradient(x: torch.Tensor, rank: int, world_size: int) -> torch.Tensor:
    """∇f_r, float64 [d]."""
    features, labels = shard(rank, world_size)
    weights = -labels * torch.sigmoid(-labels * (features @ x))
    return features.T @ weights / len(labels) + WORKLOAD.mu * x


def expected_error(quantizer: SmoothQuantizer, v: torch.Tensor) -> float:
    """E‖L^{1/2}(C(w) − w)‖² for w = L^{+1/2}·v, exactly."""
    w = quantizer.inverse_root @ v
    parts = zip(w.tensor_split(quantizer.blocks), quantizer.steps.tensor_split(quantizer.blocks), strict=True)
    grid = torch.cat([part.norm().float() * steps for part, steps in parts])
    fraction = torch.where(grid > 0, w / grid, 0.0) % 1
    errors = quantizer.matrix.double().diagonal() * grid.square() * fraction * (1 - fraction)
    return float(torch.where(quantizer.steps.isfinite(), errors, 0.0).sum())


@pytest.mark.parametrize(("rule", "blocks"), [("uniform", 1), ("varying", 1), ("uniform", 8), ("varying", 3)])
def test_the_measured_error_is_the_theorys(rule: str, blocks: int) -> None:
    quantizer = SmoothQuantizer(WORKLOAD.smoothness_matrix(0, 4), BUDGET, rule, blocks)
    v = gradient(torch.zeros(65, dtype=torch.float64), 0, 4)
    generator = torch.Generator().manual_seed(0)
    payloads = [quantizer.encode(v, generator) for _ in range(1000)]
    decoded = torch.stack([quantizer.decode(payload) for payload in payloads])
    measured = float((decoded - v).square().sum(1).mean())
    assert measured == pytest.approx(expected_error(quantizer, v), rel=0.1)
    assert measured <= quantizer.bound * float((quantizer.inverse_root @ v).square().sum())
    # Unbiased: the mean of 1000 is √1000 times closer than one of them is.
    assert float((decoded.mean(0) - v).norm()) < 1.5 * (measured / 1000) ** 0.5
    assert {len(payload) for payload in payloads} == {quantizer.payload_bytes}


def test_the_bounds_are_ordered_and_are_those_of_the_formula() -> None:
    matrix = WORKLOAD.smoothness_matrix(0, 4)
    varying, uniform = (SmoothQuantizer(matrix, BUDGET, rule) for rule in ("varying", "uniform"))
    blocks = SmoothQuantizer(matrix, BUDGET, "uniform", 8)
    unaware = float(torch.linalg.eigvalsh(matrix)[-1]) * len(matrix) / BUDGET
    assert varying.bound == pytest.approx(float(matrix.trace()) / BUDGET)
    assert varying.bound < blocks.bound < uniform.bound < unaware
    for quantizer in (varying, uniform, blocks):
        norms = [float((1 / part).norm()) for part in quantizer.steps.tensor_split(quantizer.blocks)]
        assert sum(norms) == pytest.approx(BUDGET)


@pytest.mark.parametrize("rule", ["varying", "uniform"])
def test_nothing_is_sent_of_what_the_function_does_not_depend_on(rule: str) -> None:
    matrix = torch.diag(torch.tensor([4.0, 1.0, 0.0, 0.0]))
    quantizer = SmoothQuantizer(matrix, budget=2.0, rule=rule, blocks=2)
    v = torch.tensor([1.0, -2.0, 0.0, 0.0], dtype=torch.float64)
    generator = torch.Generator().manual_seed(0)
    decoded = torch.stack([quantizer.decode(quantizer.encode(v, generator)) for _ in range(2000)])
    assert (decoded.mean(0) - v).abs().max() < 0.2
    assert (decoded[:, 2:] == 0).all()
    measured = float((decoded - v).square().sum(1).mean())
    assert measured == pytest.approx(expected_error(quantizer, v), rel=0.1)
    assert 0 < quantizer.omega < 10


def bits_to(accuracy: float, quantizers: list[SmoothQuantizer], noise: float) -> tuple[float, int]:
    """Bits per rank, and iterations, until ‖∇f‖² has fallen by ``accuracy`` under DIANA with these quantizers.

    The step is 1/(λ_max + 2·noise/W), ``noise`` the constant of the code's variance.
    """
    ranks = len(quantizers)
    x = torch.zeros(65, dtype=torch.float64)
    shifts = torch.zeros(ranks, 65, dtype=torch.float64)
    largest = max(
        float(torch.linalg.eigvalsh(WORKLOAD.smoothness_matrix(r, ranks))[-1]) for r in range(ranks)
    )
    rate = 1 / (largest + 2 * noise / ranks)
    keep = 1 / (1 + max(quantizer.omega for quantizer in quantizers))
    generator = torch.Generator().manual_seed(0)
    first = None
    for iteration in range(20_000):
        gradients = torch.stack([gradient(x, r, ranks) for r in range(ranks)])
        size = float(gradients.mean(0).square().sum())
        first = first or size
        if size <= accuracy * first:
            return 8.0 * iteration * quantizers[0].payload_bytes, iteration
        pairs = zip(quantizers, gradients - shifts, strict=True)
        sent = torch.stack([quantizer.decode(quantizer.encode(v, generator)) for quantizer, v in pairs])
        x = x - rate * (shifts + sent).mean(0)
        shifts = shifts + keep * sent
    raise AssertionError(f"not there after {iteration} iterations: {size / first:.2g}")


def test_knowing_the_smoothness_takes_fewer_bits_to_the_same_accuracy() -> None:
    matrices = [WORKLOAD.smoothness_matrix(r, 4) for r in range(4)]
    aware = [SmoothQuantizer(matrix, BUDGET) for matrix in matrices]
    standard = [SmoothQuantizer(torch.eye(65), BUDGET, "uniform")] * 4
    largest = max(float(torch.linalg.eigvalsh(matrix)[-1]) for matrix in matrices)
    aware_bits, aware_iterations = bits_to(1e-2, aware, max(q.bound for q in aware))
    standard_bits, standard_iterations = bits_to(1e-2, standard, standard[0].omega * largest)
    assert aware_iterations < standard_iterations
    assert aware_bits < standard_bits


def session(spec: str, rank: int):
    workload = WORKLOAD
    model = workload.build_model()
    compressor = mqgrad.make_compressor(spec)
    compressor.use_smoothness([workload.smoothness_matrix(r, 2) for r in range(2)])
    state = mqgrad.CompressionState(mqgrad.FixedBits(32), compressor=compressor)
    ddp = models.compressed_ddp(model, state)
    return workload, ddp, torch.optim.SGD(ddp.parameters(), lr=0.5), state


def train(run, rank: int, iterations: int) -> list[bytes]:
    workload, ddp, optimizer, state = run
    gradients = []
    for _ in range(iterations):
        optimizer.zero_grad()
        loss = workload.loss(ddp, workload.shard(rank, 2))
        loss.backward()
        gradients.append(models.gradient_of(ddp).numpy().tobytes())
        optimizer.step()
        state.step(loss)
    return gradients


def test_through_the_hook_ranks_agree_bytes_are_counted_and_a_resumed_run_goes_on() -> None:
    spec = f"smoothness:budget={BUDGET},blocks=2"

    def rank_main(rank: int):
        run = session(spec, rank)
        train(run, rank, 3)
        saved = run[1].module.state_dict()["weight"].clone(), run[3].state_dict()
        straight = train(run, rank, 3)
        run[3].close()
        wire_bytes = run[3].totals.wire_bytes / 6
        again = session(spec, rank)
        again[1].module.load_state_dict({"weight": saved[0]})
        again[3].load_state_dict(saved[1])
        resumed = train(again, rank, 3)
        again[3].close()
        return straight, resumed, wire_bytes

    results = run_ranks(rank_main)
    assert results[0][0] == results[0][1] == results[1][0] == results[1][1]
    longest = max(
        SmoothQuantizer(WORKLOAD.smoothness_matrix(r, 2), BUDGET, "varying", 2).payload_bytes
        for r in range(2)
    )
    agreement = averages.AGREEMENT_BYTES / 2  # in the first three of six iterations
    assert [wire_bytes for *_, wire_bytes in results] == [agreement + longest] * 2


def test_diana_reaches_the_optimum_that_dcgd_stays_away_from() -> None:
    """By name in a cluster, on ranks whose data differ, so that their gradients do not vanish at the optimum."""
    settings = {"batch_size": None, "mu": 0.1, "learning_rate": 0.25, "split": "by-label"}
    norms = {}
    with Distributed("logreg", settings, num_workers=2) as cluster:
        for spec, bits in (("smoothness", 32), ("smoothness:shift=false", 32), ("quantized", 32)):
            cluster.reset(seed=0, compressor=f"{spec}", controller=None)
            norms[spec] = cluster.run(100, bits=bits).losses[-1]
            cluster.verify_replicas()
    away = {spec: abs(loss - norms["quantized"]) for spec, loss in norms.items()}
    assert away["smoothness"] < away["smoothness:shift=false"] / 10


def test_a_problem_of_unknown_smoothness_is_named() -> None:
    with pytest.raises(
        ValueError, match="needs smoothness matrices, which workload 'digits-mlp' does not have"
    ):
        compressor_for(make_workload("digits-mlp"), "smoothness", 2)

    def rank_main(rank: int):
        with pytest.raises(RuntimeError, match="call use_smoothness"):
            averages.means("smoothness", 32, rank)

    run_ranks(rank_main)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("budget=0", "budget must be a finite number above 0, not 0.0"),
        ("steps=mixed", "steps 'mixed' is unknown; choose one of uniform, varying"),
        ("blocks=0", "blocks must be a whole number of at least 1, not 0"),
    ],
)
def test_wrong_settings_are_named(arguments: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        mqgrad.make_compressor(f"smoothness:{arguments}")
