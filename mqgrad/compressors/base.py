"""What a compressor is: the way in which a bucket's gradients travel and are averaged."""

import abc
from collections.abc import Set
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch

from ..codecs.quantization_noise import Coding
from ..collectives.transport import Transport
from ..collectives.wire_meter import DONE, Pending
from ..costs import Costs
from ..layout import Layout
from ..saved_state import SavesFields
from ..statistics.interval import IntervalStatistics
from ..widths import Width, Widths


class BucketWork(NamedTuple):
    """One DDP bucket, taken apart on the training thread."""

    buffer: torch.Tensor
    """The flat gradients, to be averaged in place."""
    gradients: list[torch.Tensor]
    """Views into the buffer, one per parameter, in the order of the layout."""
    layout: Layout


class Step(NamedTuple):
    """What is the same for all buckets of one iteration."""

    transport: Transport
    bits: Width
    """Width, equal on all ranks; 0 where there are ``parameter_bits``."""
    iteration: int
    """Of the run; seeds the random numbers."""
    seed: int
    """Of the run, equal on all ranks; the rank is mixed in where ranks must differ."""
    costs: Costs
    """Seconds of encoding and decoding are added here; the transport counts its own."""
    measure: bool
    """Whether figures that cost extra passes over the gradient may be taken: where an interval ends, in longer ones
    every ten iterations."""
    parameter_bits: tuple[Width, ...] | None = None
    """Width of each parameter of the bucket, in the order of its layout, where those of the model differ.

    Also where those of this bucket are equal: what is sent for a parameter must not depend on its neighbours.
    """
    seconds: float = 0.0
    """What the iteration before took this rank, by the clock; 0 if that is not known."""
    laps: int = 0
    """Iterations, or rounds, that the script has reported; ``seconds`` are those of the last one."""
    number: int = 1
    """Of the iteration in its interval, from 1."""
    period: int = 1
    """Iterations of the round that ends here."""
    of_deltas: bool = False
    """Whether model deltas are averaged, what parameters have moved in a round, and not gradients."""
    statistics: IntervalStatistics | None = None
    """Of the last interval at whose end a controller decided; None before the first."""


@runtime_checkable
class Compressor(Protocol):
    """Averages gradients over ranks in compressed form, and keeps what it needs to from one iteration to the next.

    One object belongs to one run. A dataclass whose constructor arguments are its settings: its ``repr`` is compared
    between ranks and with checkpoints, and ``make_compressor`` takes the arguments by name.
    """

    @property
    def widths(self) -> tuple[Width, ...]:
        """Bit widths that a controller may choose from; a single one where there is nothing to choose."""
        ...

    @property
    def parameter_widths(self) -> tuple[Width, ...]:
        """Widths that the parameters of one bucket may have side by side; empty where all have the same."""
        ...

    @property
    def bucket_size(self) -> int:
        """Elements that share one scale: in the layout, every parameter starts a scale bucket of its own."""
        ...

    def coding(self, world_size: int) -> Coding:
        """What noise to expect of it among so many ranks, and what becomes of that."""
        ...

    @property
    def num_residuals(self) -> int:
        """Parameters that have error feedback now; equal on all ranks."""
        ...

    @property
    def chosen(self) -> str:
        """What it has chosen for itself or found on its machine, and all ranks must have alike; empty for most."""
        ...

    def is_plain(self, bits: Widths) -> bool:
        """Whether the next :meth:`start_average_` at this width is an all-reduce of the buffer divided by the world
        size, and nothing else.

        Then no length depends on what the ranks agree on, and it may be started before they have done so, or by
        :class:`mqgrad.hook.direct.DirectAverages`.
        """
        ...

    def start_average_(self, work: BucketWork, step: Step) -> Pending[None]:
        """Begin to replace the bucket's gradients by their mean over ranks, the same bytes on every rank. It ends
        when the caller waits; the buffer is not to be read before.

        Called with more than one rank only, on the communication thread, in the same order on every rank. The next
        bucket may be begun before the wait, on some ranks, or after it: so waiting starts no collective, and what is
        remembered of the bucket is complete on return.
        """
        ...

    def forget(self, keys: Set[int]) -> None:
        """Forget what parameters are owed that are averaged no more: they were frozen, and the model wrapped anew."""
        ...

    def tried(self, work: BucketWork, bits: Width) -> list[torch.Tensor] | None:
        """What this rank's code would make of each of the bucket's gradients at a width, flat and without feedback.

        For controllers with ``trial_widths``. Changes nothing. None if that cannot be told.
        """
        ...

    def figures(self) -> dict[str, float]:
        """What this rank measured of the run so far, by name, for its record; empty where there is nothing."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """What this rank remembers of the run, as tensors and plain types."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what ``state_dict`` returned on this rank."""
        ...


class CompressorDefaults(SavesFields, abc.ABC):
    """What most compressors have in common that code without scale buckets.

    Their ``state_fields`` remember something of the run by parameter, and forget it.
    """

    @property
    def widths(self) -> tuple[Width, ...]:
        """32, for want of a choice: other settings decide what is sent, if anything is."""
        return (32,)

    @property
    def parameter_widths(self) -> tuple[Width, ...]:
        return ()

    @property
    def bucket_size(self) -> int:
        return 512

    def coding(self, world_size: int) -> Coding:
        return Coding()

    @property
    def num_residuals(self) -> int:
        return 0

    @property
    def applies_momentum(self) -> bool:
        """Whether it takes a momentum of the gradients by itself, so that the optimizer is to have none."""
        return False

    @property
    def chosen(self) -> str:
        return ""

    def is_plain(self, bits: Widths) -> bool:
        return False

    def forget(self, keys: Set[int]) -> None:
        for name in self.state_fields:
            getattr(self, name).forget(keys)

    def start_average_(self, work: BucketWork, step: Step) -> Pending[None]:
        """To the end: most of these compressors send more than once, or remember what came of it."""
        self.average_(work, step)
        return DONE

    @abc.abstractmethod
    def average_(self, work: BucketWork, step: Step) -> None:
        """Replace the bucket's gradients by their mean over ranks; see :meth:`.Compressor.start_average_`."""

    def tried(self, work: BucketWork, bits: Width) -> list[torch.Tensor] | None:
        return None

    def figures(self) -> dict[str, float]:
        return {}
