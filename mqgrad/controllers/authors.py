"""MQGrad as published: an agent that learns which width to use while the run goes on."""

import dataclasses
import math
import random

import torch
from torch import nn

from ..checks import check_range
from ..seeding import stream_seed
from ..statistics.interval import IntervalStatistics
from ..statistics.losses import SmoothedLosses
from ..widths import Width
from .rule import WidthRule
from .sarsa import prefers_next, q_network, sarsa_step, slope_reward

HISTORY = 5  # smoothed losses that a decision looks at


@dataclasses.dataclass(kw_only=True, slots=True)
class MQGradAuthors(WidthRule):
    """MQGrad's controller (Cui et al., ICTIR 2018): semi-gradient SARSA, online, within the one run.

    At the end of each interval, of 5 iterations:

    1. s' = the last 5 mean losses of the ranks, smoothed 0.9 old + 0.1 new, not normalised.
    2. Greedy: one width up, for good, if Q(s', next width) ≥ Q(s', kept width); never down, and not beyond the last.
    3. Where greedy keeps, with probability ε the next width is tried for one interval; then the kept one is back.
    4. r = −300 · slope(s') / (5 + 5·b) for the width b that was in use; a' = the width chosen in 2 and 3.
    5. Q(s, b) ← Q(s, b) + α·(r + γ·Q(s', a') − Q(s, b)) through the network 5 → 30 tanh → one value per width.

    The state before the first interval is the run's first loss, repeated; smoothing begins there. Weights and probes
    are a function of ``seed`` and of the number of decisions, so all ranks hold the same agent and a resumed run goes
    on with the same one.

    The paper's quantizer is the compressor ``minmax``; any other works too.

    Raises:
        ValueError: naming the argument and its value.
    """

    widths: tuple[Width, ...] = tuple(range(2, 9))
    start: Width = 2
    """Width until the first decision."""
    interval: int = 5
    """Iterations between two decisions."""
    learning_rate: float = 0.05
    """α."""
    discount: float = 0.9
    """γ, per decision."""
    exploration: float = 0.1
    """ε."""
    seed: int = 0
    """Of initial weights and probes; a comparison should run several."""
    kept: Width = dataclasses.field(init=False, default=0)
    """State: the width without the probe, which never falls."""
    smoothed: list[float] = dataclasses.field(init=False, default_factory=list)
    """State: s, the smoothed losses that the last decision saw; empty before the first."""
    weights: list[float] = dataclasses.field(init=False, default_factory=list)
    """State: the network's parameters, one after another; empty while they are those of ``seed``."""
    decisions: int = dataclasses.field(init=False, default=0)
    """State: decisions made."""

    def prepare(self) -> None:
        check_range(
            0, 1, learning_rate=self.learning_rate, discount=self.discount, exploration=self.exploration
        )
        self.kept = self.start

    def wanted_bits(self, statistics: IntervalStatistics) -> Width | None:
        """The width of the next interval; learns from the one that has ended."""
        if not all(map(math.isfinite, statistics.losses)):
            return None
        before = SmoothedLosses(HISTORY, self.smoothed)
        if not self.smoothed:
            before.extend(statistics.losses[:1])
        smoothed = SmoothedLosses(HISTORY, before.values)
        smoothed.extend(statistics.losses)
        network = self._network()
        with torch.no_grad():
            q_next = network(_states(smoothed))
        chosen = self._choose(q_next)
        if before.values:
            reward = slope_reward(smoothed.values, self.bits)
            target = reward + self.discount * q_next[0, self.widths.index(chosen)].item()
            self._learn(network, before, target)
        self.smoothed = smoothed.values
        self.decisions += 1
        return chosen

    def _choose(self, q: torch.Tensor) -> Width:
        """The greedy width or a probe, from values float32 [1, num_widths]."""
        if prefers_next(q, torch.tensor([self.widths.index(self.kept)])).item():
            self.kept = self.wider(self.kept)
            return self.kept
        draw = random.Random(stream_seed(self.seed, self.decisions, 0)).random()
        return self.wider(self.kept) if draw < self.exploration else self.kept

    def _learn(self, network: nn.Sequential, before: SmoothedLosses, target: float) -> None:
        with torch.enable_grad():  # whatever the caller has set
            q = network(_states(before))[0, self.widths.index(self.bits)]
            sarsa_step(network, q, target, self.learning_rate)
        self.weights = nn.utils.parameters_to_vector(network.parameters()).tolist()

    def _network(self) -> nn.Sequential:
        generator = torch.Generator().manual_seed(self.seed)
        network = q_network(HISTORY, len(self.widths), generator=generator)
        if self.weights:
            nn.utils.vector_to_parameters(
                torch.tensor(self.weights, dtype=torch.float32), network.parameters()
            )
        return network


def _states(smoothed: SmoothedLosses) -> torch.Tensor:
    return torch.tensor([smoothed.window()], dtype=torch.float32)
