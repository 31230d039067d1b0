"""What the environment warns of, each once: episodes from which little can be learned."""

import math
import warnings

from mqgrad.statistics.interval import IntervalStatistics
from mqgrad.widths import Width, format_width

from .rewards import Reward, has_no_baseline
from .settings import BitWidthSettings


class EpisodeWarnings:
    """Remembers what one environment has been warned of."""

    def __init__(self, settings: BitWidthSettings, reward: Reward) -> None:
        self._settings = settings
        self._limits = reward.limits
        self._said: set[str] = set()
        self._width_of: dict[float, Width] = {}  # by the bytes of an iteration at that width

    def check_settings(self) -> None:
        """When the environment is made."""
        settings = self._settings
        if settings.num_workers == 1:
            self._say(
                "workers",
                "num_workers is 1: one worker sends nothing, so that all bit widths are the same, and there is "
                "nothing to learn about them. Give at least 2",
            )
        if len(settings.widths) == 1:
            self._say("widths", f"widths is {settings.widths}: there is nothing to choose. Give at least 2")
        costs_nothing = settings.reward == "log-loss" and settings.discount_per_second == 1
        if settings.budget_seconds is None and costs_nothing:
            self._say(
                "seconds",
                f"max_steps={settings.max_steps} ends episodes, and budget_seconds is None: seconds then count for "
                "nothing in the reward 'log-loss', and what is learned is to send many bits however long they take. "
                "Give budget_seconds, or discount_per_second below 1",
            )

    def check_opening(self, opening: IntervalStatistics, spent: float) -> None:
        """After the opening interval, at the end of which ``spent`` seconds are gone."""
        budget = self._settings.budget_seconds
        # All there is to learn from is then one decision without gain.
        if budget is not None and spent >= budget:
            self._say(
                "budget",
                f"budget_seconds={budget:g} is spent before the first decision: the {opening.iteration} iterations "
                f"of the opening took {spent:.3g} s. Nothing is left to gain in such an episode: give a budget of "
                "many times that, or a smaller opening",
            )
        if has_no_baseline(opening.loss):
            self._say(
                "opening",
                f"the loss of the opening is {opening.loss:g}: such an episode ends with its first step, and nothing "
                "can be learned from it. If that is no chance, look at the workload's loss, learning rate and data",
            )

    def check_bytes(self, statistics: IntervalStatistics) -> None:
        """After an interval, all at one width."""
        if statistics.wire_bytes <= 0:
            return
        other = self._width_of.setdefault(statistics.wire_bytes, statistics.bits)
        if other != statistics.bits:
            self._say(
                "bytes",
                f"iterations at {format_width(other)} and at {format_width(statistics.bits)} bits send equally many "
                f"bytes, {statistics.wire_bytes:.0f}: there is nothing to choose between. Some compressors send "
                "small parameters as they are (minmax those of fewer than min_numel elements): take a larger "
                f"model, or another compressor than {self._settings.compressor!r}",
            )

    def check_loss(self, loss: float) -> None:
        """After an interval that has not diverged."""
        low, high = self._limits
        if not low < loss < high and math.isfinite(loss):
            self._say(
                "loss",
                f"the training loss is {loss:g}, and the reward {self._settings.reward!r} knows losses between "
                f"{low:g} and {high:g} only: what goes on beyond earns nothing. Add a constant to the workload's "
                "loss, or multiply it by one, so that it stays between them",
            )

    def _say(self, subject: str, message: str) -> None:
        if subject not in self._said:
            self._said.add(subject)
            warnings.warn(message, RuntimeWarning, stacklevel=4)  # whoever has called the environment
