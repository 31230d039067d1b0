"""What the ranks tell one another besides gradients: that they agree, what they measured, what was decided."""

import hashlib

import torch

from .statistics import IntervalStatistics, RankStatistics
from .transport import Transport
from .widths import Width, as_width, format_width

_FIELDS = ("configuration", "iteration", "bit width", "reported losses", "residuals")


class RankDisagreement(RuntimeError):
    """The ranks are not in the same iteration, at the same width, with the same configuration."""


class Agreement:
    """Small messages between the ranks of one run, exchanged on the communication thread."""

    def __init__(self, transport: Transport, configuration: str) -> None:
        self._transport = transport
        self._configuration = configuration
        digest = hashlib.sha256(configuration.encode()).digest()
        self._digest = int.from_bytes(digest[:6], "little")  # exact in a float64

    def check(self, *, iteration: int, bits: Width, losses: int, residuals: int) -> None:
        """Compare with all other ranks, before any payload whose length depends on it is sent.

        A payload of unexpected length makes Gloo abort the process, and one of the expected length could be
        decoded as something else, so this runs once per iteration: 40 bytes.

        Raises:
            RankDisagreement: on every rank, naming the ranks and their values.
        """
        mine = [self._digest, iteration, bits, losses, residuals]
        row = torch.tensor(mine, dtype=torch.float64, device=self._transport.device)
        rows = self._transport.all_gather(row).tolist()
        for field, values in zip(_FIELDS, zip(*rows, strict=True), strict=True):
            if len(set(values)) > 1:
                raise RankDisagreement(self._message(field, values))

    def _message(self, field: str, values: tuple[float, ...]) -> str:
        shown = ", ".join(f"rank {rank}: {format_width(value)}" for rank, value in enumerate(values))
        return (
            f"ranks disagree about the {field} ({shown}); seen by rank {self._transport.rank} with "
            f"configuration [{self._configuration}]. Construct CompressionState with equal arguments, call step() "
            "and set_width() alike, and load the state of the same iteration, on every rank."
        )

    def gather(
        self, own: RankStatistics, *, interval: int, iteration: int, bits: Width
    ) -> IntervalStatistics:
        """Exchange an interval's statistics; all ranks return the same."""
        row = own.to_row(interval).to(self._transport.device)
        rows = self._transport.all_gather(row).cpu()
        return IntervalStatistics.from_rows(rows, iteration=iteration, bits=bits)

    def adopt(self, bits: Width) -> Width:
        """Return rank 0's decision on every rank."""
        decision = torch.tensor([bits], dtype=torch.float64, device=self._transport.device)
        self._transport.broadcast_(decision)
        return as_width(decision.item())
