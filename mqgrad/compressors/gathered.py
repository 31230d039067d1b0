"""One bucket from each rank to each: gathered by all of them, and averaged by all alike."""

import dataclasses

import torch

from ..collectives.wire_meter import Pending
from ..stopwatch import add_seconds
from .exchange import Exchange
from .plans import Chunk, planned


@dataclasses.dataclass(kw_only=True, slots=True)
class Gathered(Exchange):
    """The mean over ranks, taken by each of them.

    Nobody codes a mean again, so that its error is that of the ranks' codes alone, a W-th of their mean error where
    they are independent, and there is one collective to wait for. Every rank sends (W − 1)·P for a bucket of P coded
    bytes, where :class:`.PushPull` sends 2·(W − 1)/W·P: as much with two ranks, twice as much with four.

    A rank that finds a message wrong raises and sends nothing more, so that the others fail in what follows: there is
    no message left in which it could tell them.
    """

    def start_average_(self, gradients: list[torch.Tensor]) -> Pending[None]:
        """Replace the gradients by their mean over ranks: all but step 3, which is done by who waits.

        1. Add this rank's residual and encode the bucket; keep what the code left out as the new residual.
        2. Gather the codes of all ranks, on all ranks: an all-gather.
        3. Decode and sum the W of them in fp32, in the order of the ranks; divide by W.

        See :meth:`.Exchange.start_average_`.
        """
        layout, step, transport = self.layout, self.step, self.step.transport
        chunks = planned(
            layout, self.coder.codec, step.bits, step.parameter_bits, self.coder.bucket_size, in_shards=False
        )
        with torch.inference_mode():
            self.take(gradients)
            gathered = [transport.start_all_gather(self.coded_shards(chunk)) for chunk in chunks]
            self.push.clear_padding()

        def finish() -> None:
            # 3.
            with torch.inference_mode():
                for chunk, pending in zip(chunks, gathered, strict=True):
                    self._decode_mean(chunk, pending.wait())
                self.give_back()

        return Pending(finish)

    def _decode_mean(self, chunk: Chunk, gathered: torch.Tensor) -> None:
        """Step 3."""
        with add_seconds(self.step.costs, "decode_seconds"):
            ranks = self.step.transport.world_size
            self.checks.compare(chunk, gathered.view(-1), [0] * ranks, chunk.place, lambda rank: rank)
            if self.checks.is_spoilt:
                return
            payloads = chunk.payloads(0, gathered)
            for segment, versions in zip(chunk.segments[0], payloads, strict=True):
                self.coder.codec(segment.bits).decode_mean_into_(self.vector.part(segment.part), versions)
