"""ECQ-SGD: stability as the formula says, its warning, and the entropy-coded size."""

import math
import re
import warnings

import models
import pytest
import torch
from ranks import run_ranks

import mqgrad
from mqgrad.compressors.ecq import _entropy_bytes


def run(rank: int, spec: str, bits: int, iterations: int):
    """What is owed per iteration, in units of a gradient's norm; the compressor; the warnings."""
    model = torch.nn.Linear(4096, 2, bias=False)
    compressor = mqgrad.make_compressor(spec)
    state = mqgrad.CompressionState(mqgrad.FixedBits(bits, interval=2), compressor=compressor)
    ddp = models.compressed_ddp(model, state)
    owed = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for iteration in range(iterations):
            model.zero_grad()
            generator = torch.Generator().manual_seed(2 * iteration + rank)
            loss = ddp(torch.randn(1, 4096, generator=generator)).sum()
            loss.backward()
            state.step(loss)
            state._thread.drain()
            residuals = compressor.feedback.push.state_dict().values()
            owed.append(math.sqrt(sum(float(values.square().sum()) for values in residuals) / 8192))
        state.close()
    return owed, compressor, [str(w.message) for w in caught if "ecq-sgd" in str(w.message)]


def test_alpha_follows_the_width_and_stays_stable_where_textbook_feedback_diverges() -> None:
    """One bit, plus or minus the largest magnitude of 512: γ is well above 1, and with α = β = 1 so is λ = γ."""

    def rank_main(rank: int):
        results = {}
        for spec in ("ecq-sgd", "ecq-sgd:alpha=1"):
            in_shards = f"{spec}{',' if ':' in spec else ':'}topology=sharded"  # so that there are both ways
            owed, compressor, messages = run(rank, in_shards, 1, 40)
            results[spec] = owed, compressor.stability, messages
        return results

    for results in run_ranks(rank_main):
        owed, stability, messages = results["ecq-sgd"]
        assert stability["push"][1] < 1
        assert stability["pull"][1] < 1
        assert not messages
        assert max(owed[20:]) < 1.2 * max(owed[:20])
        owed, stability, messages = results["ecq-sgd:alpha=1"]
        assert stability["push"][1] > 1
        assert owed[39] > 100 * owed[19]
        (message,) = messages  # once a run
        assert re.search(
            r"not stable at 1 bits \(push\): λ .* = \d.* ≥ 1 with α = 1, β = 1, measured γ = \d", message
        )


def test_the_measured_growth_is_that_of_the_residual() -> None:
    """‖h‖² grows by λ per iteration once the gradients are small beside it."""

    def rank_main(rank: int):
        owed, compressor, _ = run(rank, "ecq-sgd:alpha=1", 1, 60)
        return (owed[59] / owed[39]) ** (2 / 20), compressor.stability["push"][1]

    for grown, growth in run_ranks(rank_main):
        assert grown == pytest.approx(growth, rel=0.1)  # a running mean


def test_both_ways_are_reported_and_either_one_warns() -> None:
    """The push has γ = 0.2, the pull 3, and α = 1: only the feedback of the mean grows."""
    compressor = mqgrad.make_compressor("ecq-sgd:alpha=1")
    assert compressor.push_gain.learn(2, 0.2, 1.0)
    compressor._learned(compressor.push_gain, 2)
    assert compressor.pull_gain.learn(2, 3.0, 1.0)
    compressor.measured_bytes = compressor.entropy_bytes = 1.0
    with pytest.warns(RuntimeWarning, match=r"not stable at 2 bits \(pull\)"):
        compressor._learned(compressor.pull_gain, 2)
    figures = compressor.figures()
    assert figures["feedback_growth_push"] == pytest.approx(0.2)
    assert figures["feedback_growth_pull"] == pytest.approx(3.0)


def test_the_entropy_coded_size() -> None:
    # 4 elements at 1, 2 at 0, 2 at −1 of 8: 4·1 + 2·2 + 2·2 = 12 bits, and one scale of 32.
    assert _entropy_bytes(torch.tensor([[3.0, 3, 3, 3, 0, 0, -3, -3]]), 2) == (12 + 32) / 8
    assert _entropy_bytes(torch.zeros(2, 8), 4) == 8

    def rank_main(rank: int):
        _, compressor, _ = run(rank, "ecq-sgd", 4, 6)
        return compressor.measured_bytes, compressor.entropy_bytes

    for measured, entropy in run_ranks(rank_main):
        assert 0.5 * measured < entropy < 0.95 * measured  # a Gaussian uses the outer levels rarely
