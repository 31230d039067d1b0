"""MQGrad's controller against its formulas in plain numpy, and as the paper runs it on real ranks."""

import itertools
import json
import math
import random

import models
import numpy as np
import pytest
import torch
from intervals import statistics
from ranks import run_ranks

import mqgrad
from mqgrad.controllers import MQGradAuthors, make_controller
from mqgrad.controllers.sarsa import prefers_next, q_network
from mqgrad.seeding import stream_seed
from mqgrad.widths import Width

DECISIONS = 400  # as many as the paper's
PAPER = "minmax:topology=star,min_numel=1000"


def training_losses(intervals: int, seed: int = 0) -> list[list[float]]:
    """A loss that falls and is noisy, 5 a decision."""
    noise = np.random.default_rng(seed).normal(0, 0.1, (intervals, 5))
    falling = 0.3 + 2 * 0.99 ** np.arange(5 * intervals).reshape(intervals, 5)
    return (falling + noise).tolist()


def formulas(losses: list[list[float]], epsilon: float, seed: int) -> tuple[list[int], np.ndarray]:
    """Widths and final output weights by the formulas: one bit more or not, probes taken back after an interval."""
    layers = [
        p.detach().double().numpy()
        for p in q_network(5, 7, generator=torch.Generator().manual_seed(seed)).parameters()
    ]
    W1, b1, W2, b2 = (layer.copy() for layer in layers)
    kept = sent = 2
    state = np.full(5, losses[0][0])
    smoothed = [losses[0][0]]
    widths = []
    for decision, interval in enumerate(losses):
        for loss in interval:
            smoothed.append(0.9 * smoothed[-1] + 0.1 * loss)
        new_state = np.array(smoothed[-5:])
        q = W2 @ np.tanh(W1 @ new_state + b1) + b2
        if kept < 8 and q[kept + 1 - 2] >= q[kept - 2]:
            kept += 1
            next_sent = kept
        elif random.Random(stream_seed(seed, decision, 0)).random() < epsilon:
            next_sent = min(kept + 1, 8)
        else:
            next_sent = kept
        reward = -300 * np.polyfit(range(5), new_state, 1)[0] / (5 + 5 * sent)
        h, a = np.tanh(W1 @ state + b1), sent - 2
        step = 0.05 * (reward + 0.9 * q[next_sent - 2] - (W2[a] @ h + b2[a]))
        hidden = step * W2[a] * (1 - h * h)
        W2[a] += step * h
        b2[a] += step
        W1 += np.outer(hidden, state)
        b1 += hidden
        state, sent = new_state, next_sent
        widths.append(sent)
    return widths, W2


def test_initial_weights_are_the_authors() -> None:
    """Truncated normal of 0.05 and 5e-5, zero biases: Q is about 0, and differs between widths."""
    W1, b1, W2, b2 = q_network(5, 7, generator=torch.Generator().manual_seed(0)).parameters()
    for weights, std in ((W1, 0.05), (W2, 5e-5)):
        assert weights.abs().max() <= 2 * std
        # A normal law that is cut at two standard deviations has 0.88 of it.
        assert weights.std().item() == pytest.approx(0.88 * std, rel=0.15)
    assert not b1.any()
    assert not b2.any()


def test_a_tie_goes_to_the_higher_width_but_not_beyond_the_last() -> None:
    values = torch.tensor([[1.0, 1.0, 0.5], [0.0, 2.0, 2.0], [0.0, 0.0, 0.0]])
    assert prefers_next(values, torch.tensor([0, 1, 2])).tolist() == [True, True, False]
    assert not prefers_next(values[:1], torch.tensor([1])).item()


@pytest.mark.parametrize("seed", range(6))
def test_decisions_and_weights_are_those_of_the_formulas(seed: int) -> None:
    losses = training_losses(DECISIONS, seed)
    controller = MQGradAuthors(seed=seed)
    widths = [controller.decide(statistics(losses=tuple(interval))) for interval in losses]
    expected, output_weights = formulas(losses, 0.1, seed)
    assert widths == expected
    found = np.array(controller.weights)[180:390].reshape(7, 30)
    np.testing.assert_allclose(found, output_weights, rtol=1e-3, atol=1e-3)


def test_the_scripted_runs_show_every_kind_of_decision() -> None:
    """Else the test above could not fail on it."""
    runs = [formulas(training_losses(DECISIONS, seed), 0.1, seed)[0] for seed in range(6)]
    changes = {b - a for widths in runs for a, b in itertools.pairwise(widths)}
    assert changes == {-1, 0, 1}
    assert len({tuple(widths) for widths in runs}) == 6
    assert any(widths[-1] == 8 for widths in runs)


@pytest.mark.parametrize("seed", range(5))
def test_the_kept_width_never_falls_and_what_is_sent_is_at_most_one_more(seed: int) -> None:
    controller = MQGradAuthors(seed=seed, exploration=0.5)
    kept = [2]
    for interval in training_losses(100, seed):
        sent = controller.decide(statistics(losses=tuple(interval)))
        kept.append(controller.kept)
        assert sent in (kept[-1], min(kept[-1] + 1, 8))
    assert kept == sorted(kept)
    assert kept[-1] <= 8


def test_a_probe_is_clipped_at_the_last_width_and_taken_back_elsewhere() -> None:
    narrow = MQGradAuthors(widths=(2, 3), start=3, exploration=1.0)
    assert {narrow.decide(statistics(losses=(1.0,) * 5)) for _ in range(20)} == {3}
    losses = (1.0,) * 5
    probing = next(
        controller
        for controller in (MQGradAuthors(seed=seed, exploration=1.0) for seed in range(20))
        if controller.decide(statistics(losses=losses)) == 3 and controller.kept == 2
    )
    probing.exploration = 0.0
    probing.decide(statistics(losses=losses))
    assert probing.bits == probing.kept


def test_a_network_for_other_widths_is_refused() -> None:
    controller = MQGradAuthors()
    for interval in training_losses(3):
        controller.decide(statistics(losses=tuple(interval)))
    state = json.loads(json.dumps(controller.state_dict()))
    with pytest.raises(ValueError, match=r"was saved with widths \(2, 3, .*, and its widths are \(1, 2, "):
        MQGradAuthors(widths=tuple(range(1, 9))).load_state_dict(state)


def test_torchs_own_random_numbers_are_left_alone() -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    controller = make_controller("mqgrad-authors")
    with torch.no_grad():
        for interval in training_losses(3):
            controller.decide(statistics(losses=tuple(interval)))
    assert torch.equal(torch.rand(3), expected)


# On real ranks, with the paper's quantizer and its one server.


def train(rank: int, iterations: range, saved: dict | None = None) -> tuple[list[bytes], list[float], dict]:
    """Averaged gradients, widths and the state of all there is; ``saved`` continues."""
    controller = make_controller("mqgrad-authors:interval=2,exploration=0.5")
    model = models.small_model(width=40, layers=2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    state = mqgrad.CompressionState(controller, compressor=PAPER)
    ddp = models.compressed_ddp(model, state)
    state.mark()
    if saved is not None:
        model.load_state_dict(saved["model"])
        state.load_state_dict(saved["compression"])
    gradients, widths = [], []
    for iteration in iterations:
        optimizer.zero_grad()
        x, y = models.batch(rank, iteration, width=40)
        loss = torch.nn.functional.cross_entropy(ddp(x), y)
        loss.backward()
        gradients.append(models.gradient_of(model).numpy().tobytes())
        widths.append(state.bits)
        optimizer.step()
        state.step(loss)
    end = {"model": model.state_dict(), "compression": state.state_dict()}
    state.close()
    return gradients, widths, end


def test_all_ranks_are_equal_and_a_resumed_run_is_the_uninterrupted_one() -> None:
    def rank_main(rank: int) -> tuple[bool, list[float], dict]:
        straight, widths, end = train(rank, range(26))
        before, widths_before, middle = train(rank, range(11))
        after, widths_after, resumed = train(rank, range(11, 26), middle)
        same = before + after == straight and widths_before + widths_after == widths
        same &= resumed["compression"]["controller"] == end["compression"]["controller"]
        return same, widths, end["compression"]["controller"]

    results = run_ranks(rank_main, world_size=3)
    assert all(same for same, _, _ in results)
    assert results[0][1:] == results[1][1:] == results[2][1:]
    _, widths, controller = results[0]
    assert len(set(widths)) > 1
    assert controller["decisions"] == 13
    assert len(controller["weights"]) == 397
    assert all(map(math.isfinite, controller["weights"]))


def test_it_learns_in_float32_whatever_a_scripts_default_is() -> None:
    """In bfloat16 what it learned was rounded to 8 bits of mantissa, and it decided otherwise."""
    losses = training_losses(60)

    def widths_and_weights() -> tuple[list[Width], list[float]]:
        controller = MQGradAuthors(seed=3)
        return [controller.decide(statistics(losses=tuple(each))) for each in losses], controller.weights

    expected = widths_and_weights()
    torch.set_default_dtype(torch.bfloat16)
    try:
        assert widths_and_weights() == expected
    finally:
        torch.set_default_dtype(torch.float32)
