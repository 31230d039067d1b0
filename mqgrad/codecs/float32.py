"""Elements as they are: width 32."""

import dataclasses

import torch

from mqgrad.cuda_ext import Vector, checks, whole
from mqgrad.cuda_ext.scattered import readable

from .vector_codec import Feedback, VectorCodec, placed


@dataclasses.dataclass(frozen=True, slots=True)
class Float32Codec(VectorCodec):
    """Element by element: neither buckets nor seeds play a part."""

    def payload_bytes(self, numel: int) -> int:
        return 4 * numel

    def encode(
        self,
        x: Vector,
        seed: int = 0,
        bucket_ids: torch.Tensor | None = None,
        *,
        feedback: Feedback | None = None,
        out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        values = whole(readable(x)).detach().float()
        sent = values if feedback is None else _with_feedback(values, feedback)
        return placed(sent.view(torch.uint8), out)

    def decode(self, payload: torch.Tensor, numel: int) -> torch.Tensor:
        checks.require_payload(payload, 4 * numel)
        payload = payload.contiguous()
        aligned = payload if payload.storage_offset() % 4 == 0 else payload.clone()  # as part of a message
        return aligned.view(torch.float32)

    def decode_add_(self, accumulator: torch.Tensor, payload: torch.Tensor) -> None:
        accumulator.add_(self.decode(payload, accumulator.numel()))


def _with_feedback(x: torch.Tensor, feedback: Feedback) -> torch.Tensor:
    """What is sent, where all that is owed after it is what the sum rounds off."""
    residual, alpha, beta = feedback
    checks.require_floats("residual", residual, x.numel(), x.device)
    sent = torch.add(x, residual, alpha=alpha)
    owed = torch.sub(x, sent).add_(residual, alpha=beta)
    residual.copy_(torch.where(owed.isfinite(), owed, residual))
    return sent
