"""Controllers by name, as the command line and the workers of a cluster take them."""

import dataclasses
import re
from typing import Any, NamedTuple

from ..policies.policy import load_policy
from ..spec import build, build_named
from .accordion import Accordion
from .authors import MQGradAuthors
from .base import Controller
from .dq_sgd import DQSGD
from .federated import AdaQuantFL, DAdaQuant, FedDQ
from .fixed import FixedBits
from .goodput import Goodput
from .gravac import GraVAC
from .l_greco import LGreCo
from .ramps import BudgetRamp, LinearRamp, RandomRamp
from .smoothness_layers import SmoothnessLayers

_CONTROLLERS: dict[str, type[Any]] = {
    "accordion": Accordion,
    "adaquantfl": AdaQuantFL,
    "budget-ramp": BudgetRamp,
    "dadaquant": DAdaQuant,
    "dq-sgd": DQSGD,
    "feddq": FedDQ,
    "fixed": FixedBits,
    "goodput": Goodput,
    "gravac": GraVAC,
    "l-greco": LGreCo,
    "linear-ramp": LinearRamp,
    "mqgrad-authors": MQGradAuthors,
    "random-ramp": RandomRamp,
    "smoothness-layers": SmoothnessLayers,
}

HINDSIGHT = "oracle"
"""The best fixed width. It is known after all have been run, which `mqgrad run` and `mqgrad compare` do."""


def controller_names() -> tuple[str, ...]:
    """Names that :func:`make_controller` knows, besides policy files."""
    return tuple(_CONTROLLERS)


_POLICY = re.compile(r"(?P<path>default|.*\.mqg)(?::(?P<arguments>.*))?", re.DOTALL)


class PolicySpec(NamedTuple):
    """A controller's name that is a policy's: ``default``, ``mine.mqg``, ``mine.mqg:falls_back=false``."""

    path: str
    """As :func:`mqgrad.load_policy` takes it."""
    arguments: str
    """Those of :class:`PolicyArguments`."""

    @classmethod
    def parse(cls, spec: str) -> "PolicySpec | None":
        """None for what is not a policy's."""
        match = _POLICY.fullmatch(spec)
        return None if match is None else cls(match["path"], match["arguments"] or "")


@dataclasses.dataclass(frozen=True, kw_only=True)
class PolicyArguments:
    """What a policy file leaves open."""

    falls_back: bool = True
    """As of :class:`mqgrad.FrozenPolicy`."""


def is_policy(spec: str) -> bool:
    """Whether a controller's name is a policy file's, or that of the policy that comes with the package."""
    return PolicySpec.parse(spec) is not None


def make_controller(spec: str, budget_seconds: float | None = None, seed: int | None = None) -> Controller:
    """Build a controller from its name and arguments, or from the path of a frozen policy file (``*.mqg``).

    ``fixed:4``, ``goodput``, ``dq-sgd:budget=4``, ``linear-ramp:start=2,end=8,decisions=100``,
    ``feddq:widths=2+4+8``: the arguments are those of the class, and of a policy (``default:falls_back=false``) those
    of :class:`PolicyArguments`.

    Args:
        budget_seconds: length of the run, for policies that observe their progress and rules that go by it, unless
            the spec gives one.
        seed: for controllers that draw, unless the spec gives one.

    Raises:
        ValueError: for an unknown name or argument, listing the known ones; a wrong value; an unusable policy file.
    """
    name = spec.partition(":")[0]
    if name in _CONTROLLERS:
        of_run = {"seed": seed, "budget_seconds": budget_seconds}
        given = {argument: value for argument, value in of_run.items() if value is not None}
        controller: Controller = build_named("controller", _CONTROLLERS, spec, **given)
        return controller
    if (policy := PolicySpec.parse(spec)) is not None:
        return _load(policy, spec, budget_seconds)
    if name == HINDSIGHT:
        raise ValueError(
            f"controller {spec!r}: the best fixed width is known in hindsight only and cannot decide during a run; "
            "`mqgrad run --controller oracle` runs every width, `mqgrad compare` finds it among them"
        )
    known = ", ".join(sorted([*_CONTROLLERS, HINDSIGHT]))
    raise ValueError(
        f"unknown controller {spec!r}; known: {known} (as name, or name:argument=value,…), or a policy file *.mqg"
    )


def _load(policy: PolicySpec, spec: str, budget_seconds: float | None) -> Controller:
    try:
        arguments = build(PolicyArguments, policy.arguments)
    except ValueError as error:
        raise ValueError(f"controller {spec!r}: {error}") from None
    return dataclasses.replace(load_policy(policy.path, budget_seconds), **dataclasses.asdict(arguments))
