"""What cuda_checks.py compares: shapes, values, and how."""

import dataclasses
import functools

import torch
from torch import Tensor

from mqgrad.codecs.rotation import RotationCodec

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sizes:
    """What to compare: (elements, bucket size), and bits."""

    shapes: list[tuple[int, int]]
    rotated_shapes: list[tuple[int, int]]
    widths: tuple[int, ...] = tuple(range(1, 9))
    beyond_bytes: bool = True
    """Also how the kernels run: cuda_execution.py."""
    many_elements: bool = False


SIZES = {
    "tiny": Sizes(  # for the sanitizers, which take a hundred times as long
        shapes=[(1300, 512), (777, 96), (9000, 2**62), (1543, 100)],
        rotated_shapes=[(2500, 8), (4999, 128), (9000, 512), (20_000, 8192)],
        widths=(1, 3, 8),
        beyond_bytes=False,
    ),
    "small": Sizes(
        shapes=[(1, 512), (1300, 512), (777, 96), (5000, 2048), (9000, 2**62), (1543, 100), (20_000, 16_384)],
        rotated_shapes=[
            (1, 8),
            (2500, 8),
            (4200, 16),
            (4999, 128),
            (9000, 512),
            (6000, 4096),
            (20_000, 8192),
        ],
    ),
    "large": Sizes(
        shapes=[(10_000_019, 512), (3_000_000, 8192), (1_000_003, 1000), (5_000_000, 2**62)],
        rotated_shapes=[(10_000_019, 512), (6_000_000, 8192), (1_000_003, 65_536)],
        many_elements=True,
    ),
}


class AnyRotationCodec(RotationCodec):
    """In all buckets that the kernels take: gradients are not sent in the smallest."""

    def __post_init__(self) -> None:
        """Refuses none."""


@functools.lru_cache(maxsize=4)
def gradient(numel: int) -> Tensor:
    """On the CPU: heavy-tailed, with zeros, ties between levels and a NaN near the end."""
    generator = torch.Generator().manual_seed(numel)
    x = torch.randn(numel, generator=generator) * torch.randn(numel, generator=generator).exp()
    x[numel // 4 : numel // 2] = 0.0
    x[::9] = (x[::9] * 8).round() / 8
    if numel > 1000:
        x[-3] = torch.nan
    return x


def shifted(payload: Tensor) -> Tensor:
    """The same bytes at an address that is not aligned."""
    return torch.cat([payload[:1], payload])[1:]


def same(name: str, ours: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(
        ours.cpu(), expected, rtol=0, atol=0, equal_nan=True, msg=lambda told: f"{name}: {told}"
    )
