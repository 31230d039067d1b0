"""TernGrad: every element is -1, 0 or 1 times a scale that all ranks share, so that codes can be summed."""

import dataclasses
from collections.abc import Sequence

import torch

from ..checks import check_not_negative
from ..codecs.bit_planes import pack, unpack
from ..costs import Costs
from ..seeding import stream_seed
from ..stopwatch import add_seconds
from ..widths import Width
from .base import BucketWork, CompressorDefaults, Step
from .topology import TopologyName, join, make_topology

MOST_RANKS = 127  # a sum of their codes, shifted to 0..2W, fits a byte


@dataclasses.dataclass(kw_only=True)
class TernGrad(CompressorDefaults):
    """TernGrad (Wen et al., NeurIPS 2017): unbiased up to clipping, no feedback.

    The sum of W ternary codes is sent back without loss in ceil(log2(2W + 1)) bits an element.

    Raises:
        ValueError: for a negative ``clip`` or an unknown topology.
    """

    clip: float = 2.5
    """Elements are clipped at this many σ of their parameter, σ being the root mean square; 0 clips nothing."""
    topology: TopologyName = "sharded"
    """Who sums the codes."""

    def __post_init__(self) -> None:
        make_topology(self.topology)
        check_not_negative(clip=self.clip)

    @property
    def widths(self) -> tuple[Width, ...]:
        """2, of the push."""
        return (2,)

    def average_(self, work: BucketWork, step: Step) -> None:
        """Average through ternary codes.

        1. Clip each parameter's gradient; its scale s is the largest magnitude on any rank.
        2. Code c = sign(g) with probability |g|/s, else 0; push the shards of c to their owners.
        3. Sum the W versions of each own shard, an integer from −W to W.
        4. Pull the sums; the mean is s·sum/W.

        Raises:
            ValueError: more than 127 ranks.
        """
        transport, topology = step.transport, make_topology(self.topology)
        if transport.world_size > MOST_RANKS:
            raise ValueError(
                f"terngrad sums the codes of at most {MOST_RANKS} ranks, not {transport.world_size}"
            )
        sum_bits = (2 * transport.world_size).bit_length()
        # 1.
        with add_seconds(step.costs, "encode_seconds"):
            clipped = [self._clipped(gradient) for gradient in work.gradients]
            scales = torch.stack([_largest(gradient) for gradient in clipped])
        transport.all_reduce_(scales, "max")
        # 2.
        with add_seconds(step.costs, "encode_seconds"):
            payloads = _encode(clipped, scales, work.layout.keys, step)
        shard_bytes = len(payloads) // transport.world_size
        received = topology.start_push(transport, payloads, [shard_bytes] * transport.world_size).wait()
        # 3.
        coded = [_sum(versions, sum_bits, step.costs) for versions in received]
        # 4.
        lengths = [shard_bytes // 2 * sum_bits] * transport.world_size
        pulled = topology.start_pull(transport, join(coded, payloads.device), lengths).wait()
        with add_seconds(step.costs, "decode_seconds"):
            sums = (
                torch.cat([unpack(payload, sum_bits) for payload in pulled.split(lengths)]).float()
                - transport.world_size
            )
            _write_means(work.gradients, scales, sums, transport.world_size)

    def _clipped(self, gradient: torch.Tensor) -> torch.Tensor:
        """float32 [N]."""
        flat = gradient.reshape(-1).float()
        if self.clip == 0 or flat.numel() == 0:
            return flat
        bound = self.clip * flat.square().mean().sqrt()
        return flat.clamp(-bound, bound)


def _encode(
    gradients: list[torch.Tensor], scales: torch.Tensor, keys: Sequence[int], step: Step
) -> torch.Tensor:
    """The packed codes of all shards, one after another."""
    seed = stream_seed(step.seed, step.iteration, step.transport.rank)
    codes = [
        _ternary(gradient, scale, stream_seed(seed, key, 0))
        for gradient, scale, key in zip(gradients, scales, keys, strict=True)
    ]
    return torch.cat([pack(shard, 2) for shard in _shards(torch.cat(codes), step.transport.world_size)])


def _sum(versions: torch.Tensor, sum_bits: int, costs: Costs) -> torch.Tensor:
    """The packed sums of one shard's codes; each code is 1 too large, so that a sum is W too large."""
    with add_seconds(costs, "decode_seconds"):
        total = unpack(versions[0], 2)
        for payload in versions[1:]:
            total += unpack(payload, 2)
    with add_seconds(costs, "encode_seconds"):
        return pack(total, sum_bits)


def _write_means(
    gradients: Sequence[torch.Tensor], scales: torch.Tensor, sums: torch.Tensor, world_size: int
) -> None:
    start = 0
    for gradient, scale in zip(gradients, scales, strict=True):
        mean = scale * sums[start : start + gradient.numel()] / world_size
        gradient.copy_(mean.view_as(gradient))
        start += gradient.numel()


def _largest(x: torch.Tensor) -> torch.Tensor:
    """max|x|; infinite if x is not finite, so that the maximum over ranks is too."""
    largest = x.abs().amax() if x.numel() else x.new_zeros(())
    return torch.where(largest.isfinite(), largest, torch.inf)


def _ternary(x: torch.Tensor, scale: torch.Tensor, seed: int) -> torch.Tensor:
    """uint8 [N]: 0, 1 or 2 for −1, 0 or 1."""
    generator = torch.Generator(device=x.device).manual_seed(seed)
    chosen = torch.rand(x.shape, generator=generator, dtype=x.dtype, device=x.device) * scale < x.abs()
    return (1 + torch.where(chosen, x.sign(), 0.0)).to(torch.uint8)


def _shards(codes: torch.Tensor, world_size: int) -> torch.Tensor:
    """[W, S], S a multiple of 8, filled up with the code of zero."""
    length = -(-codes.numel() // (8 * world_size)) * 8 * world_size
    return torch.nn.functional.pad(codes, (0, length - codes.numel()), value=1).view(world_size, -1)
