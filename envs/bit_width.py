"""The Gymnasium environment around a data-parallel training run."""

import math
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt

from mqgrad.policies.observer import Observer
from mqgrad.policies.policy import apply_action
from mqgrad.statistics.interval import IntervalStatistics
from mqgrad.trainers.clusters.cluster import Cluster
from mqgrad.trainers.link import LinkEmulation
from mqgrad.trainers.workloads.smooth import compressor_for
from mqgrad.trainers.workloads.workload import make_workload

from .episode_warnings import EpisodeWarnings
from .info import describe, interval_info
from .recovering_cluster import RecoveringCluster, settings_of_cluster
from .rewards import has_no_baseline, make_reward
from .settings import BitWidthSettings, check_rate, make_settings

Observation = npt.NDArray[np.float32]

DIVERGENCE_FACTOR = 10.0
DIVERGENCE_MARGIN = 1.0


class BitWidthEnv(gymnasium.Env[Observation, np.int64]):
    """
    ## Description

    Data-parallel training sends its gradients with a few bits per element: fewer are faster and noisier. The agent
    watches the training loss and chooses the bit width, as in MQGrad (Cui et al., ICTIR 2018). Behind the environment
    stands a real training run: worker processes, DistributedDataParallel, real data. One step is one interval of
    `interval` training iterations; `opening` iterations come before the first.

    ## Action Space

    `Discrete(n)`. With `action="absolute"` action i runs the next interval at `widths[i]` bits per element. With
    `action="keep-or-increase"` (the authors') there are two:

    - 0: keep the width
    - 1: take the next width up; at the last one, keep it

    ## Observation Space

    `Box` of float32, taken after each interval; every entry is finite. With `observation="full"`, `history=5` and
    n widths (L_k is the mean loss of interval k):

    | Num       | Observation                                                       | Min | Max |
    |-----------|-------------------------------------------------------------------|-----|-----|
    | 0 - 3     | ln L_{k-1} - ln L_k of the last intervals, oldest first           | -5  | 5   |
    | 4         | ln L_0 - ln L_k, the drop since the opening interval              | -10 | 10  |
    | 5         | log2(seconds that 32 bits add to an iteration / fixed seconds)    | -20 | 20  |
    | 6         | the same of their standard deviation                              | -20 | 20  |
    | 7         | log10(fixed seconds): beside those of bytes, with those of coding | -6  | 3   |
    | 8         | seconds that coding may well cost / fixed seconds                 | 0   | 0.5 |
    | 9         | gradient noise / squared norm of the mean gradient                | 0   | 2   |
    | 10        | how the optimizer's steps grow with gradients: SGD 1, Adam 0      | 0   | 1   |
    | 11 - 10+n | ln of the efficiency to expect of an iteration, for each width    | -8  | 0   |
    | 11+n      | log2(width of the interval) / 5, below 0 where widths below 1 are | 0   | 1   |
    | 12+n      | elapsed seconds / budget seconds (0 without a budget)             | 0   | 1   |

    `observation="loss"` has the entries 0 - 4 alone. `observation="authors"` has the last 5 per-iteration losses,
    smoothed 0.9 old + 0.1 new and not normalised, within -1000 and 1000.

    ## Rewards

    - `reward="log-loss"`: discount_per_second^elapsed * (ln L_{k-1} - ln L_k), for losses between 1e-6 and 1e18,
      where they are held. Undiscounted, an episode's return is the log-loss that training lost within the budget. An
      interval that ends past the budget counts with the share of its seconds that lay inside. With
      `smoothing_seconds` above 0 a moving average takes the place of ln L_k: the mean loss of a few iterations is
      noisy, and a return goes by the last of them.
    - `reward="authors"`: -300 * slope / (5 + 5 * bits), slope the least-squares slope of the last 5 smoothed losses.

    A step on which training diverges is rewarded with -`divergence_penalty` instead.

    ## Starting State

    A fresh model, optimizer and data order, from a training seed drawn from the environment's generator. An opening
    interval of `opening` iterations is run at `initial_bits`, so that the first observation is real; its seconds count.

    ## Episode End

    1. Termination: divergence, that is a loss that is not finite or above 10 times the opening loss plus 1
    2. Truncation: `budget_seconds` of training are spent
    3. Truncation: `max_steps` steps are done

    Stable-Baselines3 bootstraps from the state at a truncation, as if training went on and earned more. Around this
    environment put `mqgrad.agents.wrappers.BudgetEnds`, as `mqgrad train` does, which reports both as terminations.

    ## Arguments

    ```python
    >>> import gymnasium, mqgrad.envs
    >>> env = gymnasium.make("mqgrad/BitWidth-v0", workload="digits-cnn", link_mbit_per_s=(10, 1000))
    >>> env.reset(seed=7, options={"link_mbit_per_s": 100})  # this episode on a link of 100 Mbit/s

    ```

    | Parameter             | Type                           | Default            | Description |
    |-----------------------|--------------------------------|--------------------|-------------|
    | `workload`            | **str**                        | `"digits-cnn"`     | what is trained: a name or `"package.module:factory"` |
    | `workload_settings`   | **dict**                       | `None`             | keyword arguments of the workload |
    | `num_workers`         | **int**                        | `2`                | worker processes; one alone sends nothing, whatever the width (warned of) |
    | `link_mbit_per_s`     | **float**, **(float, float)**  | `None`             | rate of the emulated link; a range is sampled log-uniformly at each reset |
    | `link_latency_ms`     | **float**                      | `0.0`              | its latency per collective; 0: under a `clock`, the clock's |
    | `interval`            | **int**                        | `5`                | iterations per step |
    | `opening`             | **int**                        | `2`                | iterations before the first step |
    | `period`              | **int**                        | `1`                | iterations between two averages; above 1, `interval` and `opening` count rounds of so many, and "per iteration" is per round |
    | `budget_seconds`      | **float**                      | `5.0`              | seconds of training per episode |
    | `max_steps`           | **int**                        | `None`             | steps per episode at most; alone, it leaves seconds uncounted by an undiscounted log-loss reward (warned of) |
    | `widths`              | **tuple**                      | `(1,2,3,4,6,8,16,32)` | bit widths to choose from |
    | `initial_bits`        | **float**                      | `None`             | width of the opening interval; by default the largest up to 4 |
    | `observation`         | **str**                        | `"full"`           | `"full"`, `"loss"` or `"authors"` |
    | `history`             | **int**                        | `5`                | intervals (`authors`: iterations) that the observation looks back |
    | `action`              | **str**                        | `"absolute"`       | `"absolute"` or `"keep-or-increase"` |
    | `reward`              | **str**                        | `"log-loss"`       | `"log-loss"` or `"authors"` |
    | `discount_per_second` | **float**                      | `1.0`              | discount of the log-loss reward |
    | `smoothing_seconds`   | **float**                      | `0.0`              | time constant of a moving average of the log-loss whose drop is the log-loss reward; 0: none |
    | `divergence_penalty`  | **float**                      | `10.0`             | see Rewards |
    | `compressor`          | **str**                        | `"quantized"`      | how gradients travel, as `mqgrad.make_compressor` takes it; its widths must include `widths` |
    | `clock`               | **ModelClock**                 | `None`             | modelled instead of measured seconds: a seed then gives one trajectory |
    | `simulated`           | **bool**                       | `False`            | virtual workers in this process instead of real ones; needs a `clock` |
    | `timeout_seconds`     | **float**                      | `60.0`             | how long a silent worker is waited for |
    | `preset`              | **str**                        | `None`             | `"authors"`: MQGrad's own setting; arguments given beside it win |
    | `cluster`             | **Cluster**                    | `None`             | an existing cluster to train on; it stays yours to close, and its own workload, workers and clock hold |
    | `render_mode`         | **str**                        | `None`             | `"ansi"`: `render()` returns a line on the last interval |

    `reset(options={"link_mbit_per_s": rate})` sets the link of one episode (`None`: no link). `info` holds the figures
    of the interval as plain numbers: `bits`, `loss`, `iteration`, `step_seconds`, `compute_seconds`, `encode_seconds`,
    `wire_seconds`, `decode_seconds` and `wire_bytes` (means per iteration), `elapsed_seconds`, `link_mbit_per_s`,
    `emulated` (measured on an emulated link), `modelled` (the seconds come from a ModelClock) and `diverged` (the
    episode ends for that).

    If a worker dies or hangs, `WorkerError` is raised, and the next `reset` starts new workers.

    ## Version History

    * v0: Initial version
    """  # noqa: E501

    metadata = {"render_modes": ["ansi"], "render_fps": 1}  # noqa: RUF012 - Gymnasium's own form, which wants a rate
    action_space: gymnasium.spaces.Discrete

    def __init__(
        self,
        *,
        preset: str | None = None,
        cluster: Cluster | None = None,
        render_mode: str | None = None,
        **arguments: Any,
    ) -> None:
        self.settings: BitWidthSettings = make_settings(preset, arguments)
        if cluster is not None:
            self.settings = settings_of_cluster(cluster, self.settings, arguments)
        if render_mode not in (None, *self.metadata["render_modes"]):
            raise ValueError(f"render_mode {render_mode!r} is unknown; choose None or 'ansi'")
        self.render_mode = render_mode
        schema = self.settings.schema
        low, high = schema.bounds()
        actions = len(schema.widths) if self.settings.action == "absolute" else 2
        self.observation_space = gymnasium.spaces.Box(low, high, dtype=np.float32)
        self.action_space = gymnasium.spaces.Discrete(actions)
        if cluster is None:  # mistakes are found here, before workers start
            workload = make_workload(self.settings.workload, **self.settings.workload_settings or {})
            compressor_for(workload, self.settings.compressor, self.settings.num_workers)
        self._cluster = RecoveringCluster(self.settings, cluster)
        self._observer = Observer(schema, self.settings.budget_seconds)
        self._reward = make_reward(self.settings)
        self._running = False
        self._warnings = EpisodeWarnings(self.settings, self._reward)
        self._warnings.check_settings()
        self._line = ""

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Begin an episode: fresh training, and an opening interval at ``initial_bits``.

        Args:
            seed: seeds the generator that training seeds and links are drawn from.
            options: ``{"link_mbit_per_s": rate}`` sets the link of this episode.

        Raises:
            ValueError: an unknown option, a wrong rate, or with `reward="log-loss"` a finite loss that is not
                above 1e-6.
            WorkerError: a worker died or hangs.

        Warns:
            RuntimeWarning: the opening interval has used up the budget, or its loss is not finite or
                at least 1e18; each said once.
        """
        super().reset(seed=seed)
        training_seed = int(self.np_random.integers(2**31))
        self._link = self._choose_link(options or {})
        self._observer.reset()
        self._running = False
        self._bits, self._steps = self.settings.first_bits, 0
        self._cluster.reset(training_seed, self._link)
        opening = self._cluster.run(self.settings.opening, self._bits)
        self._reward.reset(opening)
        self._running = True
        limit = DIVERGENCE_FACTOR * abs(opening.loss) + DIVERGENCE_MARGIN
        # Where the opening has diverged, whatever follows has nothing to fall from.
        self._loss_limit = -math.inf if has_no_baseline(opening.loss) else limit
        observation = self._observer.observe(opening)
        self._warnings.check_opening(opening, self._observer.elapsed_seconds)
        return observation, self._info(opening)

    def step(self, action: np.int64) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Train one interval at the width that ``action`` chooses.

        Raises:
            ValueError: an action outside the action space.
            gymnasium.error.ResetNeeded: no episode is running; on a `cluster` that environments share, another has
                begun its own since.
            WorkerError: a worker died or hangs; ``reset`` starts new ones.

        Warns:
            RuntimeWarning: the loss has left what the reward knows, or two widths send equally many bytes; each is
                said once.
        """
        if not self._running:
            raise gymnasium.error.ResetNeeded("no episode is running: call reset() before step()")
        if not self.action_space.contains(action):
            raise ValueError(f"action {action!r} is not one of 0 to {self.action_space.n - 1}")
        settings = self.settings
        self._bits = apply_action(settings.action, int(action), self._bits, settings.widths)
        self._running = False  # in case training fails or is interrupted
        statistics = self._cluster.run(settings.interval, self._bits)
        self._steps += 1
        self._warnings.check_bytes(statistics)
        observation = self._observer.observe(statistics)
        reward = self._reward(statistics, self._observer.elapsed_seconds)
        diverged = not (math.isfinite(statistics.loss) and statistics.loss <= self._loss_limit)
        if diverged:
            reward = -settings.divergence_penalty
        else:
            self._warnings.check_loss(statistics.loss)
        is_over = not diverged and self._is_spent()
        self._running = not (diverged or is_over)
        return observation, reward, diverged, is_over, self._info(statistics, diverged=diverged)

    def evaluate(self) -> dict[str, float]:
        """Held-out figures of the model as it is now, its ``loss`` among them; costs nothing of the budget.

        Raises:
            gymnasium.error.ResetNeeded: no episode has begun, or on a `cluster` that environments share, another has
                begun its own since.
            WorkerError: a worker died or hangs; ``reset`` starts new ones.
        """
        return self._cluster.evaluate()

    def render(self) -> str | None:
        """One line on the last interval, in mode ``ansi``."""
        return self._line if self.render_mode == "ansi" else None

    def close(self) -> None:
        """Stop the workers, if the environment started them."""
        self._running = False
        self._cluster.close()

    def _choose_link(self, options: dict[str, Any]) -> LinkEmulation | None:
        unknown = set(options) - {"link_mbit_per_s"}
        if unknown:
            raise ValueError(f"reset option {sorted(unknown)[0]!r} is unknown; choose link_mbit_per_s")
        rate = check_rate(options.get("link_mbit_per_s", self.settings.link_mbit_per_s))
        latency_ms = self.settings.link_latency_ms
        if rate is None and self.settings.link_mbit_per_s is None and latency_ms:
            raise ValueError(
                f"link_latency_ms={latency_ms!r} is of an emulated link: give its rate too, link_mbit_per_s"
            )
        if isinstance(rate, tuple):
            low, high = np.log(rate)
            rate = float(np.exp(self.np_random.uniform(low, high)))
        return None if rate is None else LinkEmulation(mbit_per_s=rate, latency_ms=latency_ms)

    def _is_spent(self) -> bool:
        budget, max_steps = self.settings.budget_seconds, self.settings.max_steps
        return (budget is not None and self._observer.elapsed_seconds >= budget) or self._steps == max_steps

    def _info(self, statistics: IntervalStatistics, *, diverged: bool = False) -> dict[str, Any]:
        elapsed = self._observer.elapsed_seconds
        self._line = describe(statistics, elapsed)
        is_modelled = self.settings.clock is not None
        figures = interval_info(statistics, elapsed, self._link, is_modelled=is_modelled)
        return {**figures, "diverged": diverged}
