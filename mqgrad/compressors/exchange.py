"""One bucket's gradients through coded payloads: what all ways to their mean begin with."""

import abc
import dataclasses
from typing import TYPE_CHECKING, NamedTuple

import torch

from ..collectives.wire_meter import Pending
from ..layout import Layout
from ..stopwatch import add_seconds
from .base import Step
from .feedback import FeedbackGain, Residual
from .gradient_vector import GradientVector
from .message_checks import MessageChecks
from .plans import Chunk

if TYPE_CHECKING:  # which imports this file
    from .feedback_coder import FeedbackCoder


class Direction(NamedTuple):
    """One direction of an exchange: the push to the shards' owners (of an all-gather, to all ranks), or the pull back
    from them."""

    residual: Residual | None
    """Of the own gradient on the way there, of the own shards' means on the way back. None without error feedback."""
    gain: FeedbackGain
    seed: int
    """Of the random numbers."""

    def clear_padding(self) -> None:
        if self.residual is not None:
            self.residual.clear_padding()


@dataclasses.dataclass(kw_only=True, slots=True)
class Exchange(abc.ABC):
    """The mean over ranks of one bucket's gradients, through coded payloads.

    All of it goes on in inference mode: what autograd notes of views and writes, for nobody, costs a tenth of the
    thread's time. So what it makes must not outlast it; residuals are made before.
    """

    coder: "FeedbackCoder"
    layout: Layout
    step: Step
    push: Direction
    checks: MessageChecks = dataclasses.field(init=False, repr=False)
    vector: GradientVector = dataclasses.field(init=False, repr=False)
    """The gradients, and then their mean."""

    def __post_init__(self) -> None:
        self.checks = MessageChecks(self.step, self.layout.keys[0])

    @abc.abstractmethod
    def start_average_(self, gradients: list[torch.Tensor]) -> Pending[None]:
        """Begin to replace the gradients by their mean over ranks; no collective is started by waiting for the end,
        so that the next bucket may begin before it, on some ranks, or after it.

        On the CPU messages end with a checksum; a wrong one is an error where the end is waited for, a
        ``CorruptPayload``, and gradients and residuals are not to be used then.
        """

    def take(self, gradients: list[torch.Tensor]) -> None:
        """Hold the gradients."""
        with add_seconds(self.step.costs, "encode_seconds"):
            self.vector = GradientVector(self.layout, gradients)

    def give_back(self) -> None:
        """End with the mean, where the gradients were.

        Raises:
            CorruptPayload: a message was wrong.
        """
        with add_seconds(self.step.costs, "decode_seconds"):
            self.vector.finish()
        self.checks.raise_problem()

    def new_messages(self, nbytes: int) -> torch.Tensor:
        return torch.empty(nbytes, dtype=torch.uint8, device=self.layout.bucket_ids.device)

    def coded_shards(self, chunk: Chunk) -> torch.Tensor:
        """This rank's messages of all shards, joined: its gradient, coded through its residual."""
        with add_seconds(self.step.costs, "encode_seconds"):
            messages = self.new_messages(sum(chunk.lengths))
            self.coder.encode_shards(self, self.push, chunk, messages)
            self.checks.sign(chunk, messages, range(len(chunk.lengths)), chunk.place)
        return messages
