"""What training costs: seconds and bytes of one rank."""

import dataclasses


@dataclasses.dataclass(kw_only=True, slots=True)
class Costs:
    """Seconds and bytes of one rank, summed over iterations."""

    step_seconds: float = 0.0
    """Wall-clock time of the iterations."""
    compute_seconds: float = 0.0
    """The part of ``step_seconds`` not spent waiting for communication."""
    encode_seconds: float = 0.0
    wire_seconds: float = 0.0
    fixed_wire_seconds: float = 0.0
    """The part of ``wire_seconds`` that does not depend on bytes: the latencies, as of small collectives, that had to
    be waited for one after another."""
    decode_seconds: float = 0.0
    decide_seconds: float = 0.0
    """Combining the ranks' statistics and asking the controller; what it sends meanwhile is in ``wire_seconds``."""
    wire_bytes: float = 0.0
    """Bytes handed to the transport for other ranks."""

    def add(self, other: "Costs") -> None:
        """Add another's seconds and bytes."""
        for name in COSTS:
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def double_seconds(self) -> None:
        """Double all seconds, for one iteration that was not timed and is taken to be as long as the timed one."""
        for name in COSTS:
            if name.endswith("_seconds"):
                setattr(self, name, 2 * getattr(self, name))

    def clear(self) -> None:
        """Back to zero."""
        for name in COSTS:
            setattr(self, name, 0.0)


COSTS = tuple(field.name for field in dataclasses.fields(Costs))  # asking for them takes longer than adding
"""Their names."""


@dataclasses.dataclass(kw_only=True, slots=True)
class Totals(Costs):
    """What a run has cost one rank so far.

    ``step_seconds`` and ``compute_seconds`` leave out an iteration whose start is not known: the first, unless
    ``mark`` was called before it. What was sent in it is counted, seconds and bytes.
    """

    iterations: int = 0
    bit_iterations: float = 0
    """Sum of the bit width over iterations."""

    def since(self, before: "Totals") -> Costs:
        """Costs between an earlier copy of the totals and now."""
        return Costs(**{name: getattr(self, name) - getattr(before, name) for name in COSTS})

    @property
    def mean_bits(self) -> float:
        """Mean bit width over the iterations."""
        return self.bit_iterations / max(self.iterations, 1)
