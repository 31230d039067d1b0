"""GraVAC over compression factors: against a plain transcription of the published rule, on real ranks."""

import math

import models
import pytest
import torch
from ranks import run_ranks

import mqgrad
from mqgrad.compressors.factor_search import DENSE, Energies, FactorSearch

WIDTH, WORLD_SIZE, ITERATIONS = 1200, 3, 26
LEAST, LARGEST, EPSILON, OMEGA, WINDOW, KEEP = 4, 64, 0.6, 0.02, 4, 0.3
SPEC = (
    f"least_factor={LEAST},largest_factor={LARGEST},least_gain={EPSILON},tolerance={OMEGA},"
    f"window={WINDOW},keep={KEEP}"
)
SHARPNESS = [0.4] * 2 + [2.5] * 8 + [0.1] * 3 + [3.0] * 13
"""Of each iteration: how much of the gradient its largest elements hold."""


def gradient(iteration: int, rank: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(WORLD_SIZE * iteration + rank)
    magnitudes = (SHARPNESS[iteration] * torch.randn(WIDTH, generator=generator)).exp()
    return magnitudes * torch.randn(WIDTH, generator=generator).sign()


def seconds_of(iteration: int) -> float:
    """Scripted, faster and faster."""
    return 0.2 * 0.95**iteration


def applied(spec: str) -> list[tuple[list[torch.Tensor], list[float]]]:
    """By rank: what is applied in each iteration, and the factor that was sent."""

    def rank_main(rank: int):
        model = torch.nn.Linear(WIDTH, 1, bias=False)
        compressor = mqgrad.make_compressor(spec)
        state = mqgrad.CompressionState(mqgrad.FixedBits(32), compressor=compressor)
        measured = state._iteration._step
        state._iteration._step = lambda *args: measured(*args)._replace(
            seconds=seconds_of(state.totals.iterations - 1)
        )
        ddp = models.compressed_ddp(model, state)
        means, factors = [], []
        for iteration in range(ITERATIONS):
            model.zero_grad()
            ddp(gradient(iteration, rank)[None]).sum().backward()
            means.append(model.weight.grad[0].numpy().copy())
            factors.append(compressor.sent)
        state.close()
        return means, factors

    return [
        ([torch.from_numpy(g) for g in means], factors) for means, factors in run_ranks(rank_main, WORLD_SIZE)
    ]


def top(v: torch.Tensor, factor: float) -> torch.Tensor:
    kept = torch.zeros_like(v)
    where = v.abs().topk(math.ceil(len(v) / factor)).indices
    kept[where] = v[where]
    return kept


def transcription(momentum: float | None) -> list[tuple[torch.Tensor, float]]:
    """The rule written down once more, for all ranks at a time: mean and factor of each iteration."""
    low, high, frozen = LEAST, 2 * LEAST, False
    delta: dict[float, float] = {}
    rate: dict[float, float] = {}
    u, rest = torch.zeros(WORLD_SIZE, WIDTH), torch.zeros(WORLD_SIZE, WIDTH)
    results = []
    for i in range(ITERATIONS):
        factor = 1.0
        for theta in (low, high):
            if delta.get(theta, 0) >= EPSILON:
                factor = theta
        g = torch.stack([gradient(i, rank) for rank in range(WORLD_SIZE)])
        if momentum is not None:
            u = momentum * u + g
            g = u
        v = rest + g
        sent = torch.stack([top(row, factor) for row in v]) if factor > 1 else v
        rest = torch.where(sent != 0, 0.0, v)
        if factor > 1:  # where nothing is sent late there is no momentum to mask
            u = torch.where(sent != 0, 0.0, u)
        results.append((sent.mean(0), factor))
        for theta in {low, high}:
            share = float(sum(top(row, theta).square().sum() for row in v) / v.square().sum())
            delta[theta] = KEEP * delta.get(theta, share) + (1 - KEEP) * share
        if factor > 1:
            rate[factor] = KEEP * rate.get(factor, 1 / seconds_of(i)) + (1 - KEEP) / seconds_of(i)
        if (i + 1) % WINDOW == 0 and not frozen:
            if abs(delta[low] - delta[high]) / delta[low] <= OMEGA:
                low = high
            compressed = sorted(((rate[t] * delta[t], t) for t in rate), reverse=True)
            if (len(compressed) > 1 and compressed[0][0] - compressed[1][0] <= OMEGA * compressed[0][0]) or (
                compressed and high == LARGEST
            ):
                frozen, low, high = True, compressed[0][1], compressed[0][1]
            else:
                high = min(2 * high, LARGEST)
    return results


@pytest.mark.parametrize(("base", "momentum"), [("top-k", None), ("dgc", 0.5)])
def test_it_is_the_published_rule(base: str, momentum: float | None) -> None:
    expected = transcription(momentum)
    ranks = applied(f"gravac:{SPEC},base={base},momentum={momentum or 0.9}")
    factors = [factor for _, factor in expected]
    assert {DENSE, 2 * LEAST, 4 * LEAST, LARGEST} <= set(factors)
    assert DENSE in factors[3:]  # a gain fell
    for means, sent in ranks:
        assert sent == factors
        for got, first, (mean, _) in zip(means, ranks[0][0], expected, strict=True):
            assert torch.equal(got, first)
            torch.testing.assert_close(got, mean)


def searched(search: FactorSearch, shares: dict[float, float], seconds: dict[float, float], iterations: int):
    """The factors sent while each factor keeps a share of the energy and takes its seconds."""
    sent = []
    for _ in range(iterations):
        sent.append(search.choose())
        energies = Energies(1.0, shares[search.safe], shares[search.candidate])
        search.observe(energies, seconds.get(search.sent, 1.0))
    return sent


def test_the_search_freezes_where_two_factors_are_level_at_the_better_one() -> None:
    shares = {10.0: 0.95, 20.0: 0.9, 40.0: 0.85, 80.0: 0.8}
    sent = searched(FactorSearch(window=2), shares, {20.0: 0.18, 40.0: 0.1702, 80.0: 0.01}, 8)
    # A new candidate is measured once before it is sent. 0.9/0.18 against 0.85/0.1702: 80 is not tried any more.
    assert sent == [DENSE, 20, 10, 40, 20, 20, 20, 20]


def test_factors_that_lose_nothing_become_safe_and_the_last_one_ends_the_search() -> None:
    search = FactorSearch(window=2, largest_factor=30)
    sent = searched(search, dict.fromkeys((10.0, 20.0, 30.0), 0.9), {20.0: 2.0, 30.0: 1.0}, 6)
    assert sent == [DENSE, 20, 20, 30, 30, 30]
    assert search.is_frozen
    assert (search.safe, search.candidate) == (30, 30)


def test_everything_is_sent_where_no_factor_keeps_enough_and_bad_figures_teach_nothing() -> None:
    search = FactorSearch(window=1, largest_factor=20)
    assert searched(search, {10.0: 0.5, 20.0: 0.4}, {}, 5) == [DENSE] * 5
    assert not search.is_frozen
    before = search.search_state()
    search.observe(Energies(math.inf, math.nan, 1.0), 1.0)
    assert search.search_state() == before
    search.observe(Energies(0.0, 0.0, 0.0), 1.0)  # nothing to lose
    assert search.gains[20.0] > before["gains"][20.0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("base=qsgd", "base 'qsgd' is unknown; choose one of top-k, dgc"),
        ("least_factor=1", "least_factor 1.0 must be more than 1 and at most largest_factor, 1000.0"),
        ("largest_factor=5", "least_factor 10.0 must be more than 1 and at most largest_factor, 5.0"),
        ("growth=1", "growth 1.0 must be more than 1"),
        ("least_gain=2", "least_gain must be from 0 to 1, not 2.0"),
        ("tolerance=-1", "tolerance must be from 0 to 1, not -1.0"),
        ("keep=1", "keep must be at least 0 and less than 1, not 1.0"),
        ("window=0", "window must be a whole number of at least 1, not 0"),
        ("base=dgc,momentum=1", "momentum must be at least 0 and less than 1, not 1.0"),
    ],
)
def test_mistakes_are_named(arguments: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        mqgrad.make_compressor(f"gravac:{arguments}")
