"""What the public ops that decode have in common, whatever the code: arguments checked, then the C++ kernel, or the
reference on other devices."""

import dataclasses
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from mqgrad.cuda_ext import checks, library, reference, scattered
from mqgrad.cuda_ext.scattered import Vector


@dataclasses.dataclass(frozen=True, kw_only=True)
class DecodeOps:
    """The ops that decode payloads of one code.

    A code's ``settings``, such as bits and bucket size, are the last arguments of all its ops. The errors are those
    that `decode`, `decode_into`, `decode_mean_into` and `decode_add_` document.
    """

    name: str
    """The op that decodes, which the names of the others begin with: `_into`, `_mean_into` and `_add_` follow."""
    reference: ModuleType
    """Decodes, and decodes and adds, where there are no kernels."""
    payload_bytes: Callable[..., int]
    """Of numel and settings, which it checks."""
    fuses_means: Callable[..., bool]
    """Whether there is a kernel for means, on a device with settings."""

    def decode(self, payload: Tensor, numel: int, *settings: int) -> Tensor:
        """The values of a payload, float32 [numel]."""
        checks.require_payload(payload, self.payload_bytes(numel, *settings))
        return self._kernel("", payload.device)(payload.contiguous(), numel, *settings)

    def decode_into(self, out: Vector, payload: Tensor, *settings: int) -> None:
        """Overwrite a vector [N] with a decoded payload."""
        numel = out.numel()
        checks.require_payload(payload, self.payload_bytes(numel, *settings))
        payload = payload.contiguous()
        if scattered.is_writable(out, payload) and library.has_kernels(payload.device):
            scattered.overwrite(out, self._compiled("_into"), payload, numel, *settings)
        else:
            scattered.copy_to(out, self.decode(payload, numel, *settings))

    def decode_mean_into(self, out: Vector, payloads: Tensor, *settings: int) -> None:
        """Overwrite a vector [N] with the mean of W payloads."""
        numel = out.numel()
        checks.require_payloads(payloads, self.payload_bytes(numel, *settings))
        payloads = checks.rows_of(payloads)
        in_place = scattered.is_writable(out, payloads)
        if not self.fuses_means(payloads.device, *settings):
            scattered.copy_to(out, self.mean(payloads, numel, *settings))
        elif in_place:
            scattered.overwrite(out, self._compiled("_mean_into"), payloads, numel, *settings)
        else:
            mean = torch.empty(numel, dtype=torch.float32, device=payloads.device)
            self.decode_mean_into(mean, payloads, *settings)
            scattered.copy_to(out, mean)

    def decode_add_(self, accumulator: Tensor, payload: Tensor, *settings: int) -> None:
        """Add a decoded payload to a contiguous float32 [N]."""
        checks.require_payload(payload, self.payload_bytes(accumulator.numel(), *settings))
        checks.require_floats("accumulator", accumulator, accumulator.numel(), payload.device)
        payload = payload.contiguous()
        checks.require_apart("accumulator", accumulator, payload=payload)
        library.note_written(accumulator)
        self._kernel("_add_", payload.device)(accumulator, payload, *settings)

    def mean(self, payloads: Tensor, numel: int, *settings: int) -> Tensor:
        """The mean of W payloads, float32 [numel], one after another."""
        return reference.mean_of(payloads, numel, lambda sums, row: self.decode_add_(sums, row, *settings))

    def _kernel(self, suffix: str, device: torch.device) -> Any:
        return getattr(library.kernels(device, self.reference), self.name + suffix)

    def _compiled(self, suffix: str) -> Any:
        """A kernel where there are some, without asking again for each of an exchange's many chunks."""
        return getattr(torch.ops.mqgrad, self.name + suffix)
