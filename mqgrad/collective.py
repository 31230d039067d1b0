"""The compressed mean all-reduce of one DDP bucket."""

import contextlib
import dataclasses
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch

from .codec import Codec
from .feedback import ErrorFeedback, FeedbackGain
from .layout import Layout
from .seeding import stream_seed
from .sketch import Sketcher
from .statistics import Costs, RankStatistics
from .transport import Transport


class BucketWork(NamedTuple):
    """One DDP bucket, taken apart on the training thread."""

    buffer: torch.Tensor
    """The flat gradients, to be averaged in place."""
    gradients: list[torch.Tensor]
    """Views into the buffer, one per parameter, in the order of the layout."""
    layout: Layout


@dataclasses.dataclass(slots=True)
class CompressedMean:
    """Averages gradients over ranks, quantized on the way to each shard's owner and on the way back.

    This is a parameter server whose server role is sharded over the ranks (MQGrad's push and pull, Cui et al. 2018):
    every rank receives 2·(W−1)/W of a coded model per iteration, whatever the world size.
    """

    transport: Transport
    codec: Codec
    seed: int
    """Of stochastic rounding; equal on all ranks, the rank is mixed in."""
    push_feedback: ErrorFeedback | None
    """Of each rank's own gradient."""
    pull_feedback: ErrorFeedback | None
    """Of the averaged shard that this rank owns; zero in the parts that others own."""
    sketcher: Sketcher = dataclasses.field(init=False)
    push_gain: FeedbackGain = dataclasses.field(default_factory=FeedbackGain)
    pull_gain: FeedbackGain = dataclasses.field(default_factory=FeedbackGain)

    def __post_init__(self) -> None:
        self.sketcher = Sketcher(self.seed)

    def average_(
        self, work: BucketWork, *, bits: int, iteration: int, costs: Costs, figures: RankStatistics | None
    ) -> None:
        """Replace the bucket's gradients by their mean over ranks, the same bytes on every rank.

        Args:
            bits: width, equal on all ranks.
            iteration: of the run; seeds the random numbers.
            costs: seconds of encoding and decoding are added here.
            figures: if given, the figures of this rank's gradient are added here, for three passes over it.
        """
        if figures is not None:
            figures.local_norm_sq += _norm_sq(work.buffer)
            figures.peak_energy += _peak_energy(work.buffer, self.codec.bucket_size)
            figures.sketch = figures.sketch + self.sketcher.sketch(work.buffer, work.layout.keys[0]).cpu()
        if self.transport.world_size == 1:
            pass  # the mean of one gradient is that gradient: nothing to send, nothing to lose
        elif bits == 32:
            self._average_plain(work)
        else:
            self._average_coded(work, bits, iteration, costs, measure=figures is not None)

    def _average_plain(self, work: BucketWork) -> None:
        """DDP's own all-reduce, after handing over whatever feedback a coded width has left behind."""
        holds_backlog = self.push_feedback is not None and self.push_feedback.holds(work.layout)
        if holds_backlog:
            self._add_backlog(work)
        buffer = work.buffer
        buffer.div_(self.transport.world_size)
        self.transport.all_reduce_(buffer)
        # An overflowing step is not applied, so its backlog is kept. The buffer is the same on every rank.
        if holds_backlog and bool(buffer.isfinite().all()):
            self._drop_backlog(work)

    def _add_backlog(self, work: BucketWork) -> None:
        assert self.push_feedback is not None
        assert self.pull_feedback is not None
        push, pull = self._residuals(work.layout)
        assert push is not None
        assert pull is not None
        # The pull residual is of the mean, hence W times: the division by W follows.
        pending = push + pull * self.transport.world_size
        for gradient, view in zip(work.gradients, work.layout.views(pending), strict=True):
            gradient.add_(view.view_as(gradient))

    def _drop_backlog(self, work: BucketWork) -> None:
        assert self.push_feedback is not None
        assert self.pull_feedback is not None
        self.push_feedback.drop(work.layout)
        self.pull_feedback.drop(work.layout)

    def _average_coded(
        self, work: BucketWork, bits: int, iteration: int, costs: Costs, *, measure: bool
    ) -> None:
        """Average through coded payloads.

        1. Add this rank's residual and encode every shard; keep what the code left out as the new residual.
        2. All-to-all: shard r of every rank goes to rank r.
        3. Decode and sum the W versions of the own shard in fp32; divide by W.
        4. Add the shard's residual, encode the mean again, keep what was left out.
        5. All-gather the coded means.
        6. Decode all shards, the own one included, so that every rank ends with the same bits.
        """
        layout, shard = work.layout, work.layout.shard_numel
        world_size, rank = self.transport.world_size, self.transport.rank
        push, pull = self._residuals(layout)
        # 1.
        with _add_seconds(costs, "encode_seconds"):
            flat = layout.pack(work.gradients)
            seed = stream_seed(self.seed, iteration, rank)
            parts = [slice(r * shard, (r + 1) * shard) for r in range(world_size)]
            payloads = [
                self._encode(flat, push, part, layout, bits, seed, self.push_gain, measure) for part in parts
            ]
            payloads_WP = torch.stack(payloads)
        # 2.
        received_WP = self.transport.all_to_all(payloads_WP)
        # 3.
        with _add_seconds(costs, "decode_seconds"):
            mean = torch.zeros(shard, dtype=torch.float32, device=flat.device)
            for payload in received_WP:
                self.codec.decode_add_(mean, payload, bits)
            mean.div_(world_size)
        # 4.
        with _add_seconds(costs, "encode_seconds"):
            own = parts[rank]
            flat[own] = mean
            seed = stream_seed(self.seed, iteration, world_size)
            coded = self._encode(flat, pull, own, layout, bits, seed, self.pull_gain, measure)
        # 5.
        gathered_WP = self.transport.all_gather(coded)
        # 6.
        with _add_seconds(costs, "decode_seconds"):
            for part, payload in zip(parts, gathered_WP, strict=True):
                flat[part] = self.codec.decode(payload, shard, bits)
            layout.unpack(flat, work.gradients)

    @property
    def num_residuals(self) -> int:
        """Parameters that have error feedback now; equal on all ranks."""
        return len(self.push_feedback) if self.push_feedback is not None else 0

    def state_dict(self) -> dict[str, Any]:
        """Residuals and measured gains of this rank."""
        return {name: getattr(self, name).state_dict() for name in self._stateful()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what ``state_dict`` returned."""
        for name in self._stateful():
            getattr(self, name).load_state_dict(state[name])

    def _stateful(self) -> list[str]:
        names = ["push_feedback", "pull_feedback", "push_gain", "pull_gain"]
        return [name for name in names if getattr(self, name) is not None]

    def _encode(
        self,
        flat: torch.Tensor,
        residual: torch.Tensor | None,
        part: slice,
        layout: Layout,
        bits: int,
        seed: int,
        gain: FeedbackGain,
        measure: bool,
    ) -> torch.Tensor:
        """Encode ``flat[part]``, through ``residual[part]`` where there is feedback."""
        size = self.codec.bucket_size
        ids = layout.bucket_ids[part.start // size : part.stop // size]
        if residual is None:
            return self.codec.encode(flat[part], bits, seed, ids)
        if self.codec.rounding == "nearest" or bits >= 16:
            return self.codec.encode_with_feedback(
                flat[part], residual[part], bits, seed=seed, bucket_ids=ids
            )
        alpha = gain.alpha(bits)
        value = flat[part] + alpha * residual[part] if measure else flat[part]
        payload = self.codec.encode_with_feedback(
            flat[part], residual[part], bits, alpha=alpha, seed=seed, bucket_ids=ids
        )
        if measure:
            error = self.codec.decode(payload, value.numel(), bits) - value
            gain.observe(bits, _norm_sq(error), _norm_sq(value))
        return payload

    def _residuals(self, layout: Layout) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        """Residuals of the layout; when DDP has regrouped it, the pull residuals move to their new owners."""
        if self.push_feedback is None or self.pull_feedback is None:
            return None, None
        moved = self.pull_feedback.moved(layout)
        push, pull = self.push_feedback.flat(layout), self.pull_feedback.flat(layout)
        if moved is not None:
            # Each element is non-zero on its old owner alone, so the sum is exact.
            values = pull[moved]
            self.transport.all_reduce_(values)
            own = slice(
                self.transport.rank * layout.shard_numel, (self.transport.rank + 1) * layout.shard_numel
            )
            pull[moved] = values
            kept = pull[own].clone()
            pull.zero_()
            pull[own] = kept
        return push, pull


def _norm_sq(x: torch.Tensor) -> float:
    return float(torch.linalg.vector_norm(x, dtype=torch.float32).square())


def _peak_energy(gradient: torch.Tensor, bucket_size: int) -> float:
    """Σ n·max|g|² over scale buckets."""
    padding = -gradient.numel() % bucket_size
    peaks = torch.nn.functional.pad(gradient.float(), (0, padding)).view(-1, bucket_size).abs().amax(dim=1)
    return float(peaks.square().sum()) * bucket_size


@contextlib.contextmanager
def _add_seconds(costs: Costs, name: str) -> Iterator[None]:
    start = time.perf_counter()
    yield
    setattr(costs, name, getattr(costs, name) + time.perf_counter() - start)
