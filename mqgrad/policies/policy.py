"""The frozen policy: a trained network that chooses bit widths without the library that trained it."""

import dataclasses
import json
import os
import pathlib
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from ..checks import check_choice, check_range, plain_number
from ..saved_state import check_keys
from ..statistics.fallback import Fallback
from ..statistics.interval import LEAST_SECONDS, IntervalStatistics
from ..widths import Width, check_width
from .observation import ObservationSchema
from .observer import Observer
from .policy_file import PolicyFileError, file_error, read_policy_file, write_policy_file
from .policy_network import (
    ACTIVATIONS,
    MAX_LAYERS,
    Layer,
    Normalization,
    check_layers,
    check_number,
    network_outputs,
)

__all__ = ["ACTIONS", "FrozenPolicy", "PolicyFileError", "load_policy"]

ACTIONS = ("absolute", "keep-or-increase")
COMPARE_WIDTHS = "compare-widths"  # a reading of the network's outputs, not an action of the environment
_PACKAGED = pathlib.Path(__file__).parent
_PLAIN_FIELDS = (
    "activation",
    "action",
    "interval",
    "opening",
    "least_seconds",
    "initial_bits",
    "budget_seconds",
    "provenance",
)
"""Fields that the document of a policy file has under their own name."""
_FIXED = {"schema", "layers", "normalization", *_PLAIN_FIELDS} - {"provenance"}
"""Fields that what a policy remembers goes by, and that cannot be assigned once it is made."""


@dataclasses.dataclass(kw_only=True, eq=False)
class FrozenPolicy:
    """A controller that evaluates a multilayer perceptron on the observation and takes the largest output.

    It picks the actions that the SB3 model it came from would pick (ties go to the first action; for that model so do
    outputs that its softmax rounds to the same probability), holds no code, and needs torch and numpy only.

    Raises:
        ValueError: naming the field that does not fit the others.
    """

    schema: ObservationSchema
    layers: list[Layer]
    """(weight float32 [out, in], bias float32 [out]) of each layer, with the activation between layers."""
    activation: str = "tanh"
    action: str = "absolute"
    """``absolute``: output i is ``schema.widths[i]``. ``keep-or-increase``: 0 keeps, 1 goes one width up.
    ``compare-widths`` (MQGrad's own): output i is the value of ``schema.widths[i]``, and the width goes one up
    unless the current one's value is larger than the next one's."""
    interval: int = 5
    """Iterations between two decisions."""
    opening: int | None = None
    """Iterations before the first decision; None is a whole interval."""
    least_seconds: float = LEAST_SECONDS
    """Between two decisions: intervals are made longer, up to ten times, where iterations are short. What it observes
    of the loss is as if it had decided after each ``interval``."""
    initial_bits: Width = 8
    normalization: Normalization | None = None
    budget_seconds: float | None = None
    """Length of the run that progress is measured against."""
    provenance: dict[str, Any] = dataclasses.field(default_factory=dict)
    """Where the policy comes from, as plain JSON."""
    falls_back: bool = True
    """Whether 32 bits are in force where they take no longer than what the network decides, and 8 are tried now and
    then to learn of that (:class:`mqgrad.statistics.fallback.Fallback`). So it is with an observation that tells
    seconds (``full``) and the action ``absolute`` only. Not in the file."""

    def __post_init__(self) -> None:
        check_choice("activation", self.activation, tuple(ACTIVATIONS))
        check_choice("action mode", self.action, (*ACTIONS, COMPARE_WIDTHS))
        _check_iterations("interval", self.interval)
        if self.opening is not None:
            _check_iterations("opening", self.opening)
        self.initial_bits = check_width(self.initial_bits, self.schema.widths)
        if self.budget_seconds is not None:
            check_number("budget_seconds", self.budget_seconds)
        if self.normalization is not None:
            self.normalization.check(self.schema.size)
        if not isinstance(self.provenance, dict):
            raise ValueError(f"provenance {self.provenance!r} must be a dictionary of plain JSON values")
        outputs = 2 if self.action == "keep-or-increase" else len(self.schema.widths)
        check_layers(self.layers, self.schema.size, outputs)
        check_range(0.0, 3600.0, least_seconds=self.least_seconds)
        if self.action != "absolute":
            self.least_seconds = 0.0  # it goes up by one width a decision, however long that takes
        self._observer = Observer(self.schema, self.budget_seconds, self.interval)
        self._bits = self.initial_bits
        self._fallback = Fallback()
        self._is_made = True

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _FIXED and getattr(self, "_is_made", False):
            raise AttributeError(
                f"{name} of a policy is fixed, for what it remembers goes by it: give load_policy the "
                f"budget_seconds, or make another policy with dataclasses.replace(policy, {name}={value!r})"
            )
        super().__setattr__(name, value)

    @property
    def widths(self) -> tuple[Width, ...]:
        """Widths that it chooses from."""
        return self.schema.widths

    def logits(self, observation: npt.NDArray[np.float32]) -> torch.Tensor:
        """Outputs of the network for one observation: float32 [size] -> float32 [actions]."""
        if self.normalization is not None:
            observation = self.normalization(observation)
        # A batch of one, as SB3 evaluates it: the same kernel, hence the same bits.
        batch = torch.from_numpy(observation).unsqueeze(0)
        return network_outputs(self.layers, self.activation, batch).squeeze(0)

    def act(self, observation: npt.NDArray[np.float32]) -> int:
        """Index of the action for one observation, float32 [size]; ``compare-widths`` goes by the width last decided,
        too."""
        with torch.no_grad():
            outputs = self.logits(observation)
        if self.action != COMPARE_WIDTHS:
            return int(outputs.argmax())
        here = self.schema.widths.index(self._bits)
        return int(here + 1 < len(outputs) and bool(outputs[here + 1] >= outputs[here]))

    def decide(self, statistics: IntervalStatistics) -> Width:
        """Observe one interval and return the width of the next, in bits."""
        action = self.act(self._observer.observe(statistics))
        self._bits = apply_action(self.action, action, self._bits, self.schema.widths)
        if not (self.falls_back and self.schema.kind == "full" and self.action == "absolute"):
            return self._bits
        return self._fallback.width(self._bits, statistics, self._observer.times, self.widths)

    def state_dict(self) -> dict[str, Any]:
        """What the policy remembers of the run, as plain types."""
        observer, fallback = self._observer.state_dict(), self._fallback.state_dict()
        return {"bits": self._bits, "observer": observer, "fallback": fallback}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what ``state_dict`` returned."""
        check_keys(state, ["bits", "observer", "fallback"], "the policy")
        self._bits = check_width(state["bits"], self.schema.widths)
        self._observer.load_state_dict(state["observer"])
        self._fallback.load_state_dict(state["fallback"])

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the policy to a ``.mqg`` file (see :mod:`mqgrad.policies.policy_file`).

        Raises:
            ValueError: the provenance is not plain JSON, or is too long or too deeply nested to be read again.
            OSError: the file cannot be written.
        """
        try:
            json.dumps(self.provenance, allow_nan=False)
        except (TypeError, ValueError, RecursionError) as error:
            raise ValueError(f"provenance must hold plain JSON values only: {error}") from error
        write_policy_file(path, self._document(), self._arrays())

    def _document(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in _PLAIN_FIELDS} | {
            "observation": self.schema.to_json(),
            "num_layers": len(self.layers),
            "normalization_clip": self.normalization.clip if self.normalization else None,
        }

    def _arrays(self) -> dict[str, npt.NDArray[Any]]:
        arrays: dict[str, npt.NDArray[Any]] = {}
        for i, (weight, bias) in enumerate(self.layers):
            arrays[f"layer{i}.weight"] = weight.detach().numpy()
            arrays[f"layer{i}.bias"] = bias.detach().numpy()
        if self.normalization is not None:
            arrays["normalization.mean"] = self.normalization.mean
            arrays["normalization.std"] = self.normalization.std
        return arrays


def policy_path(path: str | os.PathLike[str]) -> pathlib.Path:
    """The file that a policy's name stands for: ``"default"`` is the one that comes with the package."""
    return _PACKAGED / "default.mqg" if path == "default" else pathlib.Path(path)


def load_policy(path: str | os.PathLike[str], budget_seconds: float | None = None) -> FrozenPolicy:
    """Read a frozen policy. A file from a stranger can be wrong, but it cannot execute anything.

    Args:
        path: a ``.mqg`` file, or ``"default"`` for the policy that comes with the package.
        budget_seconds: how long your run will take, if the policy watches its progress; None takes the length
            of the episodes it was trained on. One that was trained without a budget has seen no progress, and sees
            none with it.

    Raises:
        PolicyFileError: the file is missing, damaged, of another version or not a policy.
    """
    path = policy_path(path)
    budget_seconds = plain_number(budget_seconds)
    if budget_seconds is not None:
        check_number("budget_seconds", budget_seconds)
    document, arrays = read_policy_file(path)
    try:
        policy = _build(document, arrays)
    except (ValueError, TypeError, KeyError, OverflowError) as error:
        raise file_error(path, f"does not hold a valid policy: {error}") from error
    if budget_seconds is None or policy.budget_seconds is None:
        return policy
    return dataclasses.replace(policy, budget_seconds=budget_seconds)


def _build(document: dict[str, Any], arrays: dict[str, npt.NDArray[Any]]) -> FrozenPolicy:
    document = {"opening": None, "least_seconds": LEAST_SECONDS, **document}  # the first files lack them
    expected = {*_PLAIN_FIELDS, "observation", "num_layers", "normalization_clip"}
    if set(document) != expected:
        raise ValueError(f"its fields are {sorted(document)} and not {sorted(expected)}")
    count, clip = document["num_layers"], document["normalization_clip"]
    if type(count) is not int or not 1 <= count <= MAX_LAYERS:
        raise ValueError(f"num_layers is {count!r} and must be from 1 to {MAX_LAYERS}")
    _check_array_names(arrays, count, has_normalization=clip is not None)
    return FrozenPolicy(
        schema=ObservationSchema.from_json(document["observation"]),
        layers=[_layer(arrays, i) for i in range(count)],
        normalization=None if clip is None else _normalization(arrays, clip),
        **{name: document[name] for name in _PLAIN_FIELDS},
    )


def _check_array_names(arrays: dict[str, npt.NDArray[Any]], layers: int, *, has_normalization: bool) -> None:
    wanted = {f"layer{i}.{part}" for i in range(layers) for part in ("weight", "bias")}
    wanted |= {"normalization.mean", "normalization.std"} if has_normalization else set()
    if set(arrays) != wanted:
        raise ValueError(f"its arrays are {sorted(arrays)} and not {sorted(wanted)}")


def _layer(arrays: dict[str, npt.NDArray[Any]], i: int) -> Layer:
    return torch.from_numpy(arrays[f"layer{i}.weight"]), torch.from_numpy(arrays[f"layer{i}.bias"])


def _normalization(arrays: dict[str, npt.NDArray[Any]], clip: Any) -> Normalization:
    return Normalization(mean=arrays["normalization.mean"], std=arrays["normalization.std"], clip=clip)


def apply_action(mode: str, action: int, bits: Width, widths: tuple[Width, ...]) -> Width:
    """Width after ``action`` is taken at width ``bits``; beyond the last width, it stays there."""
    if mode == "absolute":
        return widths[action]
    return widths[min(widths.index(bits) + action, len(widths) - 1)]


def _check_iterations(name: str, value: object) -> None:
    if type(value) is not int or not 1 <= value <= 10**6:
        raise ValueError(f"{name} {value!r} must be a whole number of iterations from 1 to a million")
