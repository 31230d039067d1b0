"""Synchronous SGD with backup workers, under *simulated* delays."""

import dataclasses
import time

import torch

from mqgrad.checks import check_count, check_not_negative
from mqgrad.seeding import stream_seed

from .measured import MeasuredMethod


@dataclasses.dataclass(kw_only=True)
class BackupWorkers(MeasuredMethod):
    """Synchronous SGD with backup workers (Chen et al., 2016): each iteration takes the first N of W gradients.

    Ranks of one machine are alike, so stragglers are *simulated*: each iteration draws a delay per rank from an
    exponential distribution, the same draw on every rank; the ``backups`` slowest gradients count as zero, and
    everybody waits for the slowest of the others. An iteration is:

    1. Draw the delays, and sleep as long as the slowest of the first N = W − ``backups`` would take.
    2. Ranks that come later put zeros in the place of their gradient.
    3. All-reduce, divide by N, and step.

    Gradients travel in fp32 after backward.

    Raises:
        ValueError: for a setting out of range.
    """

    backups: int = 1
    """Gradients that are not waited for."""
    mean_delay_ms: float = 20.0
    """Mean of the simulated delays, in milliseconds; 0 for none."""

    def __post_init__(self) -> None:
        check_count(0, backups=self.backups)
        check_not_negative(mean_delay_ms=self.mean_delay_ms)

    def check_world_size(self, world_size: int) -> None:
        """Raises ValueError if no rank would be left to wait for."""
        if self.backups >= world_size:
            raise ValueError(
                f"{self.backups} backups leave none of {world_size} ranks: give at most {world_size - 1}"
            )

    def step(self, loss: torch.Tensor) -> None:
        start = time.perf_counter()
        self._average_gradients()
        waited = time.perf_counter() - start
        self._setup.optimizer.step()
        self._iterations += 1
        self._count(loss, waited)

    def _average_gradients(self) -> None:
        delays, ranks = self._delays().sort(stable=True)
        count = len(ranks) - self.backups
        time.sleep(float(delays[count - 1]))
        parameters = [p for p in self._setup.model.parameters() if p.grad is not None]
        flat = torch.cat([p.grad.reshape(-1) for p in parameters if p.grad is not None])
        if self._transport.rank in ranks[count:].tolist():
            flat.zero_()
        self._transport.all_reduce_(flat)
        flat.div_(count)
        parts = flat.split([p.numel() for p in parameters])
        for parameter, part in zip(parameters, parts, strict=True):
            parameter.grad = part.view_as(parameter)

    def _delays(self) -> torch.Tensor:
        """Seconds [W] of this iteration, equal on all ranks."""
        generator = torch.Generator().manual_seed(stream_seed(self._setup.seed, self._iterations, 0))
        delays = torch.empty(self._transport.world_size, dtype=torch.float64)
        return delays.exponential_(generator=generator) * (self.mean_delay_ms / 1000)
