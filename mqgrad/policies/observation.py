"""What a policy sees: interval statistics as a vector of bounded numbers, as :mod:`.observer` makes it.

The environment and the deployed policy share both files, so that a policy meets in deployment exactly the
vector it was trained on. Every entry is finite and inside :meth:`ObservationSchema.bounds`, whatever happens.
"""

import dataclasses
import math
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ..checks import check_choice
from ..statistics.losses import SMOOTHED_LIMIT
from ..widths import TIMED_WIDTHS, Width, check_widths

SCHEMA_VERSION = 5
KINDS = ("full", "loss", "authors")

MOST_NOISE = 2.0  # relative to the mean gradient's squared norm, of which it is a part where S is positive
LEAST_LOG_EFFICIENCY = -8.0


class Entry(NamedTuple):
    """One or more values of an observation that have the same meaning and bounds."""

    name: str
    size: int
    low: float
    high: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class ObservationSchema:
    """The layout of an observation. L_k is the mean loss of interval k.

    ``kind="loss"`` (scale-free: a constant factor on the loss changes nothing):

    | entries | value | bounds |
    |---|---|---|
    | ``history`` − 1 | ln L_{k−1} − ln L_k of the last intervals, oldest first, 0 before the run | ±5 |
    | 1 | ln L_0 − ln L_k, the drop since the first interval | ±10 |

    ``kind="full"`` appends what decides a width in practice:

    | entries | value | bounds |
    |---|---|---|
    | 1 | log2(seconds that 32 bits, if codes, would add to an iteration / fixed seconds) | ±20 |
    | 1 | the same of their standard deviation | ±20 |
    | 1 | log10(fixed seconds), those of an iteration beside its bytes, of coding if it is coded | −6 to 3 |
    | 1 | seconds that coding may well cost / fixed seconds | 0 to 0.5 |
    | 1 | gradient noise / squared norm of the mean gradient, (V/W)/‖ḡ‖² | 0 to 2 |
    | 1 | update exponent: how the optimizer's steps grow with gradients (:mod:`mqgrad.hook.update_probe`) | 0 to 1 |
    | one per width | ln of the efficiency to expect of that width (:mod:`mqgrad.statistics.efficiency`) | −8 to 0 |
    | 1 | log2(width of the interval) / 5 | 0 (or that of the narrowest width, if below) to 1 |
    | 1 | elapsed seconds / budget seconds, 0 without a budget | 0 to 1 |

    The first four are as :class:`mqgrad.statistics.step_times.StepTimes` learns them from the widths that the run has
    used; the gradient's figures are averages over decisions
    (:class:`mqgrad.statistics.smoothed_gradient.SmoothedGradient`). Nothing is divided by the gradient's signal S, of
    which a single estimate is often negative.

    ``kind="authors"`` is MQGrad's own state (Cui et al., ICTIR 2018): the last ``history`` per-iteration
    losses, smoothed 0.9 old + 0.1 new, not normalised, held within ±1000.

    A non-finite loss counts as the largest one.
    """

    kind: str = "full"
    widths: tuple[Width, ...] = TIMED_WIDTHS
    """Bit widths that a policy chooses from, increasing."""
    history: int = 5
    """Interval means (or, for ``authors``, iterations) that are remembered."""
    version: int = SCHEMA_VERSION

    def __post_init__(self) -> None:
        check_choice("observation kind", self.kind, KINDS)
        oldest = SCHEMA_VERSION if self.kind == "full" else 1  # the others have not changed
        if type(self.version) is not int or not oldest <= self.version <= SCHEMA_VERSION:
            raise ValueError(
                f"observation schema version is {self.version!r}, and {SCHEMA_VERSION} is needed; "
                "train and export the policy again"
            )
        if type(self.history) is not int or not 2 <= self.history <= 64:
            raise ValueError(f"observation history {self.history!r} must be a whole number from 2 to 64")
        object.__setattr__(self, "widths", check_widths(self.widths))

    @property
    def entries(self) -> "tuple[Entry, ...]":
        """What an observation consists of, in its order."""
        if self.kind == "authors":
            return (Entry("losses", self.history, -SMOOTHED_LIMIT, SMOOTHED_LIMIT),)
        losses = (Entry("drops", self.history - 1, -5.0, 5.0), Entry("drop", 1, -10.0, 10.0))
        if self.kind == "loss":
            return losses
        return (
            *losses,
            Entry("bytes", 1, -20.0, 20.0),
            Entry("bytes deviation", 1, -20.0, 20.0),
            Entry("fixed seconds", 1, -6.0, 3.0),
            Entry("coding", 1, 0.0, 0.5),
            Entry("noise", 1, 0.0, MOST_NOISE),
            Entry("update exponent", 1, 0.0, 1.0),
            Entry("efficiencies", len(self.widths), LEAST_LOG_EFFICIENCY, 0.0),
            Entry("width", 1, min(math.log2(self.widths[0]) / 5, 0.0), 1.0),
            Entry("spent", 1, 0.0, 1.0),
        )

    def at(self, name: str) -> slice:
        """Where in an observation the values of an entry stand."""
        names = [entry.name for entry in self.entries]
        start = sum(entry.size for entry in self.entries[: names.index(name)])
        return slice(start, start + self.entries[names.index(name)].size)

    @property
    def size(self) -> int:
        """Values of an observation."""
        return sum(entry.size for entry in self.entries)

    def bounds(self) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
        """Lowest and highest value of each, float32 [size] each."""
        pairs = [(entry.low, entry.high) for entry in self.entries for _ in range(entry.size)]
        low, high = np.array(pairs, dtype=np.float32).T
        return low.copy(), high.copy()

    def to_json(self) -> dict[str, Any]:
        """The schema as plain JSON values."""
        return dataclasses.asdict(self) | {"widths": list(self.widths)}

    @classmethod
    def from_json(cls, document: Any) -> "ObservationSchema":
        """Inverse of :meth:`to_json`.

        Raises:
            ValueError: naming the field that is missing, unknown or wrong.
        """
        names = {field.name for field in dataclasses.fields(cls)}
        if not isinstance(document, dict) or set(document) != names:
            raise ValueError(
                f"observation schema {document!r} must have the fields {', '.join(sorted(names))}"
            )
        if not isinstance(document["widths"], list):
            raise ValueError(f"observation widths {document['widths']!r} must be a list of bit widths")
        return cls(**document | {"widths": tuple(document["widths"])})
