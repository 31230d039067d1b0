"""What the ranks tell one another besides gradients: that they agree, what they measured, what was decided."""

import dataclasses
import hashlib
import importlib.metadata
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch

from ..codecs.quantization_noise import Coding
from ..collectives.transport import Transport
from ..collectives.wire_meter import Pending
from ..statistics.interval import IntervalStatistics, ParameterStatistics
from ..statistics.rank import RankStatistics
from ..widths import Width, Widths, as_width, format_width

_DIGESTS = ("configuration", "first parameters", "compressor's choice")
_CALLS = {
    "announced iterations": "step(), set_width() and begin_interval()",
    "reported losses": "step(), take_statistics() and mark()",
}
"""What a script may not have called alike, by field."""
_WITH = {"configuration": ", by the same versions of mqgrad and torch"}
_DIGESTS_FROM = 2.0**48
"""No width is as large: what stands in for several of them is."""


def versions() -> str:
    """Of what all ranks must have alike, since codes may change between them: mqgrad, and torch without its build."""
    try:
        own = importlib.metadata.version("mqgrad")
    except importlib.metadata.PackageNotFoundError:  # run from where it lies
        own = None
    return f"mqgrad={own}, torch={torch.__version__.partition('+')[0]}"


class Decision(NamedTuple):
    """What rank 0 decides for the next interval."""

    bits: Widths
    interval: float
    """Iterations of it, a whole number if the controller is right."""
    period: float
    """Iterations of a round, a whole number if the rule is right."""


class RankDisagreement(RuntimeError):
    """The ranks are not in the same iteration, at the same width, with the same configuration."""


class Agreement:
    """Small messages between the ranks of one run, exchanged on the communication thread."""

    def __init__(self, transport: Transport, configuration: str) -> None:
        self._transport = transport
        self._configuration = configuration
        self._digest = _digest(configuration)
        self._chosen = ""

    def start_check(
        self,
        *,
        iteration: int,
        bits: Widths,
        announced: int,
        losses: int,
        residuals: int,
        parameters: int,
        chosen: str,
    ) -> Pending[None]:
        """Compare with all other ranks; wait for it before any payload whose length depends on it is sent.

        A payload of unexpected length is an error that does not say why, or makes the backend abort the process, and
        one of the expected length could be decoded as something else. So wherever ranks may come to disagree, this
        comes first: 64 bytes.

        Raises:
            RankDisagreement: the wait, on every rank, naming the ranks and their values.
        """
        self._chosen = chosen
        mine = {
            "configuration": self._digest,
            "iteration": iteration,
            "bit width": _as_number(bits),
            "announced iterations": announced,
            "reported losses": losses,
            "residuals": residuals,
            "first parameters": parameters,
            "compressor's choice": _digest(chosen) if chosen else 0,
        }
        row = torch.tensor([*mine.values()], dtype=torch.float64, device=self._transport.device)
        return self._transport.start_all_gather(row).then(lambda rows: self._compare(mine, rows))

    def _compare(self, fields: Iterable[str], rows: torch.Tensor) -> None:
        for field, values in zip(fields, zip(*rows.tolist(), strict=True), strict=True):
            if len(set(values)) > 1:
                raise RankDisagreement(self._message(field, values))

    def _message(self, field: str, values: tuple[float, ...]) -> str:
        ranked = zip(self._transport.global_ranks, values, strict=True)
        shown = ", ".join(f"rank {rank}: {_shown(field, value)}" for rank, value in ranked)
        return (
            f"ranks disagree about the {field} ({shown}); seen by rank {self._transport.global_rank} with "
            f"configuration [{self._configuration}]{self._own(field)}. {_remedy(field)}"
        )

    def _own(self, field: str) -> str:
        return f", where it is [{self._chosen}]" if field == "compressor's choice" else ""

    def gather(
        self,
        own: RankStatistics,
        *,
        interval: int,
        iteration: int,
        bits: Width,
        period: int,
        last_period: int,
        coding: Coding,
    ) -> IntervalStatistics:
        """Exchange an interval's statistics; all ranks return the same."""
        rows = self._all_gather(own.to_row(interval))
        statistics = IntervalStatistics.from_rows(
            rows, iteration=iteration, bits=bits, period=period, last_period=last_period, coding=coding
        )
        if not own.parameters:
            return statistics
        parameters = ParameterStatistics.from_rows(self._all_gather(own.parameter_rows()), last_period)
        return dataclasses.replace(statistics, parameters=parameters)

    def of_rank_0(self, decision: Decision, num_parameters: int) -> Decision:
        """Return rank 0's decision on every rank: 24 bytes, and 8 per parameter where widths differ."""
        widths = decision.bits
        bits, interval, period = self._broadcast(
            [0.0 if isinstance(widths, tuple) else widths, decision.interval, decision.period]
        )
        if bits != 0:
            return Decision(as_width(bits), interval, period)
        by_parameter = self._broadcast(widths if isinstance(widths, tuple) else (widths,) * num_parameters)
        return Decision(tuple(as_width(width) for width in by_parameter), interval, period)

    def _all_gather(self, row: torch.Tensor) -> torch.Tensor:
        flat = row.reshape(-1).to(self._transport.device)
        return self._transport.all_gather(flat).view(-1, *row.shape).cpu()

    def _broadcast(self, values: Sequence[float]) -> list[float]:
        sent = torch.tensor(values, dtype=torch.float64, device=self._transport.device)
        self._transport.broadcast_(sent)
        received: list[float] = sent.tolist()
        return received


def _digest(text: str) -> int:
    """48 bits: exact in a float64."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:6], "little")


def _as_number(bits: Widths) -> float:
    """The width, or a digest of the widths, which no width is as large as."""
    return _DIGESTS_FROM + _digest(repr(bits)) if isinstance(bits, tuple) else bits


def _remedy(field: str) -> str:
    if field == "first parameters":
        return (
            "Gradients of different models would be averaged: give CompressionState the process_group that DDP has, "
            "leave DDP's init_sync as it is, by which all ranks have the same parameters, and load the same ones on "
            "every rank. Or forward changes "
            "parameters by its batch, and does more than scale rows of matrices, as nn.Embedding(max_norm=...) does: "
            "let it change buffers."
        )
    calls = _CALLS.get(field, "step() and set_width()")
    return (
        f"Construct CompressionState with equal arguments{_WITH.get(field, '')}, call {calls} alike, and load the "
        "state of the same iteration, on every rank. Give all ranks the same number of batches: DDP.join() does not "
        "call step()."
    )


def _shown(field: str, value: float) -> str:
    """A value of a field; of a digest as many hexadecimal digits as tell ranks apart at a glance."""
    if field in _DIGESTS:
        return f"digest {int(value):012x}"
    if field == "bit width" and value >= _DIGESTS_FROM:
        return f"by parameter, digest {int(value - _DIGESTS_FROM):012x}"
    return format_width(value)
