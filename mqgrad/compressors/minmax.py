"""MQGrad's own code: per-column min-max quantization of large matrices, pushed and pulled."""

import dataclasses

import torch

from mqgrad import cuda_ext

from ..checks import check_count
from ..codecs.quantization_noise import Coding
from ..stopwatch import add_seconds
from ..widths import CODED_WIDTHS, Width
from .base import BucketWork, CompressorDefaults, Step
from .topology import Topology, TopologyName, join, make_topology


@dataclasses.dataclass(kw_only=True)
class MinMax(CompressorDefaults):
    """MQGrad as published (Cui et al., ICTIR 2018): deterministic midpoint quantizer, no error feedback.

    Coded are 2-D parameters of more than ``min_numel`` elements; all others are averaged in their own precision. The
    authors' columns are those of TensorFlow's weight [inputs, outputs], one per output unit. Torch's ``nn.Linear``
    holds the transpose, so a column here is a *row* of the 2-D parameter, and shard r is a block of adjacent
    rows: statistics of a column are never split. (An ``nn.Embedding`` is not transposed between the two; it is
    treated alike, so that its columns are those of single words.)

    Raises:
        ValueError: for a negative ``min_numel`` or an unknown topology.
    """

    min_numel: int = 105_000
    """2-D parameters of this many elements or fewer are not coded; the authors' value."""
    topology: TopologyName = "sharded"
    """``star`` is the paper's: rank 0 is the server."""

    def __post_init__(self) -> None:
        make_topology(self.topology)
        check_count(0, min_numel=self.min_numel)

    @property
    def widths(self) -> tuple[Width, ...]:
        """The authors use 2-8."""
        return CODED_WIDTHS

    def coding(self, world_size: int) -> Coding:
        return Coding(recoded=True)

    def average_(self, work: BucketWork, step: Step) -> None:
        large = [g for g in work.gradients if g.ndim == 2 and g.numel() > self.min_numel]
        others = [g for g in work.gradients if g.ndim != 2 or g.numel() <= self.min_numel]
        topology = make_topology(self.topology)
        if others:
            self._average_plain(others, topology, step)
        if large:
            self._average_coded(large, topology, step)

    def _average_plain(self, gradients: list[torch.Tensor], topology: Topology, step: Step) -> None:
        flat = torch.cat([gradient.reshape(-1) for gradient in gradients])
        topology.average_plain_(step.transport, flat)
        for gradient, mean in zip(gradients, flat.split([g.numel() for g in gradients]), strict=True):
            gradient.copy_(mean.view_as(gradient))

    def _average_coded(self, gradients: list[torch.Tensor], topology: Topology, step: Step) -> None:
        """Average matrices through coded payloads.

        1. Encode every shard, that is, a block of columns of each matrix.
        2. Push each shard to its owner.
        3. Decode and sum the W versions of each own shard; divide by W; encode the mean.
        4. Pull all coded means.
        5. Decode them, the own ones included, so that every rank ends with the same bits.
        """
        transport = step.transport
        # 1.
        with add_seconds(step.costs, "encode_seconds"):
            blocks = [_column_blocks(gradient, transport.world_size) for gradient in gradients]
            payloads = [_encode([b[r] for b in blocks], step.bits) for r in range(len(blocks[0]))]
        # 2.
        lengths = [payload.numel() for payload in payloads]
        received = topology.start_push(transport, torch.cat(payloads), lengths).wait()
        # 3.
        coded = []
        for versions in received:
            with add_seconds(step.costs, "decode_seconds"):
                means = [torch.zeros_like(b[0]) for b in blocks]
                for payload in versions:
                    for mean, block in zip(means, _decode(payload, means, step.bits), strict=True):
                        mean.add_(block)
                for mean in means:
                    mean.div_(transport.world_size)
            with add_seconds(step.costs, "encode_seconds"):
                coded.append(_encode(means, step.bits))
        # 4.
        pulled = topology.start_pull(transport, join(coded, gradients[0].device), lengths).wait()
        # 5.
        with add_seconds(step.costs, "decode_seconds"):
            for r, payload in enumerate(pulled.split(lengths)):
                for block, mean in zip(
                    blocks, _decode(payload, [b[r] for b in blocks], step.bits), strict=True
                ):
                    block[r] = mean
            for gradient, block in zip(gradients, blocks, strict=True):
                gradient.copy_(block.transpose(1, 2).reshape(-1, gradient.shape[1])[: len(gradient)])


def _column_blocks(gradient: torch.Tensor, num_blocks: int) -> torch.Tensor:
    """float32 [num_blocks, inputs, columns of a block] of a gradient [outputs, inputs]; zeros fill the last."""
    outputs, inputs = gradient.shape
    columns = -(-outputs // num_blocks)
    padded = torch.nn.functional.pad(gradient.float(), (0, 0, 0, columns * num_blocks - outputs))
    return padded.view(num_blocks, columns, inputs).transpose(1, 2).contiguous()


def _encode(blocks: list[torch.Tensor], bits: Width) -> torch.Tensor:
    return torch.cat([cuda_ext.encode_minmax(block, int(bits)) for block in blocks])


def _decode(payload: torch.Tensor, like: list[torch.Tensor], bits: Width) -> list[torch.Tensor]:
    """Decode the payload of blocks of these shapes."""
    shapes = [(block.shape[0], block.shape[1]) for block in like]
    pieces = payload.split([cuda_ext.minmax_bytes(rows, columns, int(bits)) for rows, columns in shapes])
    return [cuda_ext.decode_minmax(p, *shape, int(bits)) for p, shape in zip(pieces, shapes, strict=True)]
