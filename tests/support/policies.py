"""Frozen policies with drawn weights, what they decide, and their files."""

import pathlib
import zipfile
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from intervals import statistics

from mqgrad.policies.observation import ObservationSchema
from mqgrad.policies.policy import FrozenPolicy
from mqgrad.policies.policy_network import Normalization
from mqgrad.statistics.interval import IntervalStatistics


def make_policy(**changes: Any) -> FrozenPolicy:
    schema = changes.pop("schema", ObservationSchema())
    outputs = 2 if changes.get("action") == "keep-or-increase" else len(schema.widths)
    generator = torch.Generator().manual_seed(1)

    def layer(inputs: int, outputs: int) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.randn(outputs, inputs, generator=generator), torch.randn(outputs, generator=generator)

    size = schema.size
    fields: dict[str, Any] = {
        "layers": [layer(size, 16), layer(16, outputs)],
        "normalization": Normalization(mean=np.full(size, 0.5), std=np.linspace(0.5, 2, size), clip=10.0),
        "opening": 3,
        "budget_seconds": 30.0,
        "provenance": {"algorithm": "DQN", "timesteps": 1000, "note": "größer"},
    }
    return FrozenPolicy(schema=schema, **fields | changes)


def make_statistics(loss: float, bits: int = 8) -> IntervalStatistics:
    return statistics(bits=bits, losses=(loss,) * 5, compute_seconds=0.05 * loss, gradient_signal=loss)


def decisions(policy: FrozenPolicy) -> list[int]:
    bits, seen = policy.initial_bits, []
    for loss in np.random.default_rng(0).uniform(0.1, 5, 50):
        bits = policy.decide(make_statistics(float(loss), bits))
        seen.append(bits)
    return seen


def rewrite(path: pathlib.Path, change: Callable[[dict[str, bytes]], Any], **options: Any) -> None:
    """Replace the entries of a policy file by what ``change`` makes of them."""
    with zipfile.ZipFile(path) as archive:
        entries = {name: archive.read(name) for name in archive.namelist()}
    change(entries)
    with zipfile.ZipFile(path, "w", **options) as archive:
        for name, content in entries.items():
            archive.writestr(name, content)
