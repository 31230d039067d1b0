"""Signs, and what each sign means: the code of 1-bit SGD."""

import dataclasses

import torch

from mqgrad.cuda_ext import Vector, reference, whole

from .bit_planes import pack, unpack
from .vector_codec import Feedback, VectorCodec, placed


@dataclasses.dataclass(frozen=True, slots=True)
class OneBitCodec(VectorCodec):
    """Decodes an element to the mean of its bucket's negative elements or to that of the others, by its sign.

    A payload is the two means of each of B buckets as float32 [2, B], then one bit an element, as uint8. A bucket
    that is not finite decodes to NaN. Contractive: what is left of x is its part orthogonal to the two indicator
    vectors of the signs.
    """

    bucket_size: int
    """A multiple of 8. Vectors are made of whole buckets."""

    def payload_bytes(self, numel: int) -> int:
        return 8 * (numel // self.bucket_size) + numel // 8

    def encode(
        self,
        x: Vector,
        seed: int = 0,
        bucket_ids: torch.Tensor | None = None,
        *,
        feedback: Feedback | None = None,
        out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Code float [N] as uint8 [8·B + N/8]; deterministic, so seed and identities are not used."""
        x = whole(x).detach().float()
        if feedback is None:
            return placed(self._coded(x), out)
        residual, alpha, beta = feedback
        payload = placed(self._coded(torch.add(x, residual, alpha=alpha)), out)
        reference.keep_error(x, residual, self.decode(payload, x.numel()), beta)
        return payload

    def _coded(self, x: torch.Tensor) -> torch.Tensor:
        x_BL = x.view(-1, self.bucket_size)
        positive_BL = x_BL >= 0
        count_B = positive_BL.sum(1)
        # Not by `torch.where`, which takes thirty times as long as a clamp.
        sums_2B = torch.stack(
            [part.sum(1, dtype=torch.float64) for part in (x_BL.clamp(max=0), x_BL.clamp(min=0))]
        )
        counts_2B = torch.stack([self.bucket_size - count_B, count_B]).clamp(min=1)
        means_2B = (sums_2B / counts_2B).float()  # a sum of finite elements may not be, their mean is
        means_2B = torch.where(means_2B.isfinite().all(0), means_2B, torch.nan)
        signs = pack(positive_BL.view(-1).to(torch.uint8), 1)
        return torch.cat([means_2B.view(-1).view(torch.uint8), signs])

    @property
    def repeats_padding(self) -> bool:
        """Zeros would move the means."""
        return True

    def decode(self, payload: torch.Tensor, numel: int) -> torch.Tensor:
        """Decode to float32 [numel].

        Raises:
            ValueError: the payload has the wrong length.
        """
        num_buckets = numel // self.bucket_size
        if payload.numel() != self.payload_bytes(numel):
            raise ValueError(f"payload of {payload.numel()} bytes does not hold {numel} elements at 1 bit")
        negative_B, positive_B = payload[: 8 * num_buckets].clone().view(torch.float32).view(2, -1)
        positive_BL = unpack(payload[8 * num_buckets :], 1).view(-1, self.bucket_size).float()
        decoded_BL = positive_BL * positive_B[:, None]  # products with 0 and 1 are exact
        return decoded_BL.addcmul_(1 - positive_BL, negative_B[:, None]).view(-1)

    def decode_add_(self, accumulator: torch.Tensor, payload: torch.Tensor) -> None:
        accumulator.add_(self.decode(payload, accumulator.numel()))
