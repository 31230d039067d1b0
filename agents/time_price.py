"""The reward of a decision, charged at once for the seconds that it took."""

from typing import Any, SupportsFloat

import gymnasium
import numpy as np
import numpy.typing as npt

from mqgrad.saved_state import check_keys

Array = npt.NDArray[np.float64]


MEMORY = 10  # episodes that the potential averages over
SCALE = 10.0  # brings a step's reward, about 0.03, to the size that default learning rates expect
CELLS = 20  # of the grid on which the potential is kept
STEADY = 0.2  # part of a usual return that an episode's own is steadied with


def usual_gain(returns_to_go: Array, spent: Any, spent_after: Any) -> Any:
    """What episodes usually gain between two points of the budget, Φ(p) − Φ(p') of :class:`TimePrice`.

    Args:
        returns_to_go: Φ at equal parts of the budget, [cells + 1].
        spent: part of the budget spent before, scalar or array.
        spent_after: the same after.
    """
    grid = np.linspace(0.0, 1.0, len(returns_to_go))
    return np.interp(spent, grid, returns_to_go) - np.interp(spent_after, grid, returns_to_go)


def pace_of(returns_to_go: Array, spent: Any, gained: Any) -> Any:
    """Return so far beside what episodes usually have by then, k of :class:`TimePrice`; arguments as above."""
    total = returns_to_go[0]
    if total <= 0:  # nothing is known yet, or nothing is gained: there is no pace to compare with
        return 1.0
    usual = np.maximum(usual_gain(returns_to_go, 0.0, spent), 0.0)
    return np.clip((gained + STEADY * total) / (usual + STEADY * total), 0.1, 10.0)


class TimePrice(gymnasium.Wrapper):
    """Shape the reward so that a decision is charged at once for the seconds that it took.

    In an episode of fixed seconds, a slow width costs by the steps that no longer fit in at the end: an
    effect many steps away, of which every single one is noisy. A price on seconds brings it forward:

        r' = scale · (r − k · (Φ(p) − Φ(p'))),   Φ(p) = the return that episodes so far had still to come at p,

    with p the part of the budget spent and Φ(1) = 0. So r' is what the interval gained over what is
    usually gained in the same seconds at the same point of the budget (the relative reward of
    average-reward learning), and an action shows its worth in its own step.

    With k = 1 this is potential-based shaping (Ng, Harada, Russell 1999), which leaves the best policy as it was, if
    nothing is discounted. But seconds on a slow link are worth less than on a fast one: where episodes draw their
    links, one price makes everything a loss on the one and a gain on the other, and what an action did is lost in
    that. So there, the price follows the pace of the episode:

        k = (g + c · Φ(0)) / (Φ(0) − Φ(p) + c · Φ(0)),   within 0.1 and 10,

    g being its return so far, beside what episodes usually have by then, and c = 0.2 against the noise of the first
    losses. That is a bias, as a gain raises the price of what follows; so is the presets' γ of 0.7 or 0.8 a
    decision. Both are accepted against the noise. On one link, where k is noise, k = 1 is better
    (``experiments/benchmarks/learning.py`` of f3a472b).

    The loss of an interval is the mean over its iterations, so it stands for the interval's middle, and p is
    taken there. Taken at the end, a decision would pay for all of its seconds at once and earn half of its
    gain a step later, discounted: a bias towards cheap widths, on the toy link of the tests 2 bits for 3. A moving
    average of the loss, though, moves by an interval's own seconds: there p is taken at the end.

    Φ is a running mean over episodes on a grid of p, without those that diverged. A replay buffer holds rewards
    shaped by an older Φ: :class:`~mqgrad.agents.callbacks.RepriceCallback` brings them up to date.

    Args:
        env: an ``mqgrad/BitWidth-v0``.
        budget_seconds: length of its episodes.
        by_pace: whether k follows the episode: for episodes on different links.
        smoothed: whether the reward is the drop of a moving average.
    """

    def __init__(
        self, env: gymnasium.Env, *, budget_seconds: float, by_pace: bool = False, smoothed: bool = False
    ) -> None:
        super().__init__(env)
        self.budget_seconds = budget_seconds
        self.by_pace = by_pace
        self.smoothed = smoothed
        self.grid = np.linspace(0.0, 1.0, CELLS + 1)
        self.returns_to_go = np.zeros(CELLS + 1)
        self.episodes = 0
        self._elapsed = 0.0
        self._path: list[tuple[float, float]] = []

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        observation, info = self.env.reset(**kwargs)
        self._elapsed = 0.0
        self._path = [(self._part_spent(info["elapsed_seconds"]), 0.0)]
        return observation, info

    def step(self, action: Any) -> tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = self.env.step(action)
        spent, gained = self._path[-1]
        self._path.append((self._part_spent(info["elapsed_seconds"]), gained + float(reward)))
        if (terminated or truncated) and not info["diverged"]:  # a penalty is no return
            self._learn()
        # Nothing is to come after an end, whether the budget was spent or training diverged before that.
        spent_after = 1.0 if terminated or truncated else self._path[-1][0]
        shaped = SCALE * (float(reward) - float(self.price(spent, spent_after, gained)))
        return observation, shaped, terminated, truncated, info

    def _part_spent(self, elapsed: float) -> float:
        """Part of the budget spent where the loss of the interval that ends after ``elapsed`` seconds stands."""
        before, self._elapsed = self._elapsed, elapsed
        return min(self.stands_at(before, elapsed) / self.budget_seconds, 1.0)

    def stands_at(self, begins: Any, ends: Any) -> Any:
        """Where the loss of an interval stands between its ends; scalars or arrays alike."""
        return ends if self.smoothed else (begins + ends) / 2

    def price(self, spent: Any, spent_after: Any, gained: Any, returns_to_go: Array | None = None) -> Any:
        """What a decision is charged for its seconds, k · (Φ(p) − Φ(p')); scalars or arrays alike.

        Args:
            spent: part of the budget spent before the decision.
            spent_after: the same after it.
            gained: return of the episode before it.
            returns_to_go: an older Φ than the latest.
        """
        known = self.returns_to_go if returns_to_go is None else returns_to_go
        pace = pace_of(known, spent, gained) if self.by_pace else 1.0
        return pace * usual_gain(known, spent, spent_after)

    def _learn(self) -> None:
        spent, gained = (np.array(column) for column in zip(*self._path, strict=True))
        to_go = gained[-1] - np.interp(self.grid, spent, gained)
        self.episodes += 1
        self.returns_to_go += (to_go - self.returns_to_go) / min(self.episodes, MEMORY)

    def state_dict(self) -> dict[str, Any]:
        """What was learned, as plain types."""
        return {"episodes": self.episodes, "returns_to_go": self.returns_to_go.tolist()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what ``state_dict`` returned."""
        check_keys(state, ["episodes", "returns_to_go"], "the price of time")
        self.episodes = state["episodes"]
        self.returns_to_go = np.array(state["returns_to_go"])
