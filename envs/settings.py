"""The arguments of the environment, checked, and the authors' choice of them."""

import dataclasses
from collections.abc import Iterable
from typing import Any

from mqgrad.checks import (
    check_choice,
    check_count,
    check_not_negative,
    check_positive,
    check_share,
    plain_number,
)
from mqgrad.compressors import DEFAULT_COMPRESSOR, make_compressor
from mqgrad.policies.observation import KINDS, ObservationSchema
from mqgrad.policies.policy import ACTIONS
from mqgrad.trainers.clusters.clock import ModelClock
from mqgrad.widths import TIMED_WIDTHS, Width, check_width

REWARDS = ("log-loss", "authors")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class BitWidthSettings:
    """Arguments of :class:`~mqgrad.envs.BitWidthEnv`; seconds are measured, or modelled under a ``clock``.

    Raises:
        ValueError: naming the argument, its value and what is allowed.
    """

    workload: str = "digits-cnn"
    """What is trained: a name or ``"package.module:factory"``."""
    workload_settings: dict[str, Any] | None = None
    """Keyword arguments of the workload."""
    num_workers: int = 2
    """Processes that train, one replica each."""
    link_mbit_per_s: float | tuple[float, float] | None = None
    """Rate of the emulated link in 10⁶ bits/s; a range is sampled log-uniformly at each reset."""
    link_latency_ms: float = 0.0
    """Latency of the emulated link per collective, in milliseconds."""
    interval: int = 5
    """Training iterations per step."""
    opening: int = 2
    """Training iterations before the first action, at ``initial_bits``."""
    period: int = 1
    """Training iterations between two averages, see :class:`mqgrad.CompressionState`; above 1, ``interval`` and
    ``opening`` count rounds of so many."""
    budget_seconds: float | None = 5.0
    """Seconds of training in an episode, the opening interval included; None needs ``max_steps``, and with the
    ``log-loss`` reward a discount, or seconds count for nothing."""
    max_steps: int | None = None
    """Steps after which an episode is truncated even if seconds are left."""
    widths: tuple[Width, ...] = TIMED_WIDTHS
    """Bit widths to choose from, increasing."""
    initial_bits: Width | None = None
    """Width of the opening interval; None takes the largest of ``widths`` up to 4 bits."""
    observation: str = "full"
    """Kind of the observation: ``full``, ``loss`` or ``authors``."""
    history: int = 5
    """Intervals (or, for ``authors``, iterations) that the observation looks back."""
    action: str = "absolute"
    """``absolute``: any width. ``keep-or-increase``: 0 keeps, 1 takes the next width up."""
    reward: str = "log-loss"
    """``log-loss``: drop in log-loss. ``authors``: MQGrad's slope reward."""
    discount_per_second: float = 1.0
    """Factor on the ``log-loss`` reward per elapsed second, above 0 and at most 1."""
    smoothing_seconds: float = 0.0
    """Time constant of the moving average of the log-loss whose drop is the ``log-loss`` reward; 0 for none."""
    divergence_penalty: float = 10.0
    """Subtracted, in place of the reward, when training diverges."""
    compressor: str = DEFAULT_COMPRESSOR
    """How gradients travel, as ``mqgrad.make_compressor`` takes it."""
    clock: ModelClock | None = None
    """None measures seconds; a ``ModelClock`` computes them, so that the same seed repeats."""
    simulated: bool = False
    """Virtual workers in this process instead of real ones; needs a ``clock``."""
    timeout_seconds: float = 60.0
    """How long a silent worker is waited for."""

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            object.__setattr__(self, field.name, plain_number(getattr(self, field.name)))
        check_choice("observation", self.observation, KINDS)
        check_choice("action", self.action, ACTIONS)
        check_choice("reward", self.reward, REWARDS)
        self._set_widths()
        self._check_numbers()
        self._check_together()
        object.__setattr__(self, "link_mbit_per_s", check_rate(self.link_mbit_per_s))

    def _set_widths(self) -> None:
        if not isinstance(self.widths, Iterable):
            raise ValueError(f"widths must be a sequence of bit widths, not {self.widths!r}")
        schema = ObservationSchema(kind=self.observation, widths=tuple(self.widths), history=self.history)
        object.__setattr__(self, "widths", schema.widths)
        if self.initial_bits is None:
            small = [bits for bits in self.widths if bits <= 4]
            object.__setattr__(self, "initial_bits", small[-1] if small else self.widths[0])
        if self.first_bits not in self.widths:
            raise ValueError(f"initial_bits {self.first_bits!r} must be one of widths, {self.widths}")
        sendable = make_compressor(self.compressor).widths
        for bits in self.widths:
            check_width(bits, sendable)

    def _check_numbers(self) -> None:
        counts = ("num_workers", "interval", "opening", "period")
        check_count(**{name: getattr(self, name) for name in counts})
        if self.max_steps is not None:
            check_count(max_steps=self.max_steps)
        if self.budget_seconds is not None:
            check_positive(budget_seconds=self.budget_seconds)
        check_positive(timeout_seconds=self.timeout_seconds)
        check_share(discount_per_second=self.discount_per_second)
        not_negative = ("link_latency_ms", "smoothing_seconds", "divergence_penalty")
        check_not_negative(**{name: getattr(self, name) for name in not_negative})

    def _check_together(self) -> None:
        if self.clock is not None and not isinstance(self.clock, ModelClock):
            raise ValueError(f"clock {self.clock!r} must be None, for measured seconds, or a ModelClock")
        if self.simulated and self.clock is None:
            raise ValueError(
                "simulated=True needs a clock: a ModelClock, such as mqgrad.trainers.calibrate measures"
            )
        if self.period > 1 and self.clock is not None:
            raise ValueError(f"period {self.period} needs measured seconds: a clock models single iterations")
        if self.reward != "log-loss" and (self.smoothing_seconds > 0 or self.discount_per_second != 1):
            raise ValueError(
                f"smoothing_seconds={self.smoothing_seconds!r}, discount_per_second={self.discount_per_second!r} are "
                f"of the reward 'log-loss', not of {self.reward!r}: leave them out"
            )
        if self.budget_seconds is None and self.max_steps is None:
            raise ValueError("an episode needs an end: give budget_seconds, max_steps or both")

    @property
    def schema(self) -> ObservationSchema:
        """Layout of the observations."""
        return ObservationSchema(kind=self.observation, widths=self.widths, history=self.history)

    @property
    def relative_bytes(self) -> float:
        """As of :class:`mqgrad.codecs.quantization_noise.Coding`, for the compressor among these workers."""
        return make_compressor(self.compressor).coding(self.num_workers).relative_bytes

    @property
    def first_bits(self) -> Width:
        """Width of the opening interval, in bits."""
        assert self.initial_bits is not None
        return self.initial_bits


PRESETS: dict[str, dict[str, Any]] = {
    "authors": {
        "interval": 5,
        "opening": 5,
        "budget_seconds": None,
        "max_steps": 400,
        "widths": tuple(range(2, 9)),
        "initial_bits": 2,
        "observation": "authors",
        "history": 5,
        "action": "keep-or-increase",
        "reward": "authors",
        "compressor": "minmax",
    }
}
"""Arguments by name. ``authors``: MQGrad's own experiment (Cui et al., ICTIR 2018), 400 decisions, seconds unlimited.

Its quantizer codes matrices above 105,000 elements alone: ``digits-cnn`` has one, ``digits-mlp`` has none, and there
the width changes nothing unless ``compressor="minmax:min_numel=…"`` lowers the limit.
"""


def make_settings(preset: str | None, arguments: dict[str, Any]) -> BitWidthSettings:
    """Settings from a preset and the arguments given beside it, which win.

    Raises:
        ValueError: an unknown preset or argument, or a wrong value.
    """
    if preset is not None:
        check_choice("preset", preset, tuple(PRESETS))
        arguments = _of_preset(preset, arguments)
    names = [field.name for field in dataclasses.fields(BitWidthSettings)]
    unknown = sorted(set(arguments) - set(names))
    if unknown:
        raise ValueError(
            f"unknown argument {', '.join(unknown)}; choose from preset, cluster, {', '.join(names)}"
        )
    return BitWidthSettings(**arguments)


def _of_preset(preset: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """Its own width to begin with is one of its own widths, and means nothing among others."""
    chosen = PRESETS[preset]
    if "widths" in arguments:
        chosen = {name: value for name, value in chosen.items() if name != "initial_bits"}
    return chosen | arguments


def check_rate(rate: Any) -> Any:
    """Return a link rate in Mbit/s: None, a positive number, or a (low, high) pair of them.

    Raises:
        ValueError: naming the value.
    """
    if rate is None:
        return None
    if not isinstance(rate, tuple | list):
        check_positive(link_mbit_per_s=rate)
        return plain_number(rate)
    for end in rate:
        check_positive(link_mbit_per_s=end)
    if len(rate) != 2 or rate[0] > rate[1]:
        raise ValueError(
            f"link_mbit_per_s {rate!r} must be one rate or a range (low, high), such as (10, 1000)"
        )
    return tuple(map(plain_number, rate))
