"""What a codec of flat vectors is."""

import abc
from typing import Any, NamedTuple

import torch

from mqgrad.cuda_ext import Vector, checks, reference


class Feedback(NamedTuple):
    """What a vector x is coded through: v = x + α·h is coded, and h ← β·h + x − Q(v) (ECQ-SGD, Wu et al. 2018)."""

    residual: torch.Tensor
    """float32 [N], the h of the formula, updated in place. Where v is not finite it stays as it was, so that one
    overflowing step does not poison the run."""
    alpha: float = 1.0
    beta: float = 1.0


def through(feedback: Feedback | None) -> dict[str, Any]:
    """As arguments of the ops that encode."""
    return {} if feedback is None else feedback._asdict()


class VectorCodec(abc.ABC):
    """Codes flat vectors made of scale buckets, at one width.

    Hashable, and equal to what codes alike.
    """

    __slots__ = ()

    @property
    def repeats_padding(self) -> bool:
        """Whether padding should repeat elements: zeros would change what is decoded of them."""
        return False

    @property
    def is_contractive(self) -> bool:
        """Whether ‖Q(x) − x‖ < ‖x‖ always, so that plain error feedback is stable: codes without bias are not."""
        return True

    @abc.abstractmethod
    def payload_bytes(self, numel: int) -> int:
        """Bytes that ``numel`` elements take, scales included."""

    @abc.abstractmethod
    def encode(
        self,
        x: Vector,
        seed: int = 0,
        bucket_ids: torch.Tensor | None = None,
        *,
        feedback: Feedback | None = None,
        out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Code a floating vector [N], in one tensor or scattered, as a uint8 payload [P].

        Args:
            seed: of stochastic rounding and of rotations; the same seed gives the same bytes.
            bucket_ids: int64 [ceil(N / bucket_size)], the identity of each scale bucket in the random
                stream, so that randomness follows a bucket wherever it lies in ``x``.
            out: contiguous uint8 [P], to be written and returned. Without it, a payload of 32 bits may be ``x``.
        """

    def codes_parts(self, device: torch.device) -> bool:
        """Whether there are :meth:`encode_parts` and :meth:`decode_parts_into_`."""
        return False

    def encode_parts(
        self,
        x: Vector,
        stride: int,
        seed: int,
        bucket_ids: torch.Tensor,
        *,
        feedback: Feedback | None,
        out: torch.Tensor,
    ) -> None:
        """Code R parts of a vector [(R−1)·stride + N] by one op, each of N elements and ``stride`` behind the one
        before, as :meth:`encode` would to a row of ``out``, uint8 [R, P].

        Raises:
            NotImplementedError: :meth:`codes_parts` says no. Most codecs need no such op, and callers ask first.
        """
        raise NotImplementedError(f"{type(self).__name__} codes one vector at a time")

    def decode_parts_into_(self, out: Vector, payloads: torch.Tensor, stride: int) -> None:
        """Overwrite R parts of a vector [(R−1)·stride + N] with payloads [R, P], by one op; raises as
        :meth:`encode_parts`."""
        raise NotImplementedError(f"{type(self).__name__} decodes one vector at a time")

    @abc.abstractmethod
    def decode(self, payload: torch.Tensor, numel: int) -> torch.Tensor:
        """Decode a uint8 payload to float32 [numel].

        Raises:
            TypeError: the payload is not uint8.
            ValueError: it is not a vector of exactly the length of ``numel`` elements.
        """

    @abc.abstractmethod
    def decode_add_(self, accumulator: torch.Tensor, payload: torch.Tensor) -> None:
        """Add a decoded payload to the float32 ``accumulator`` [N]."""

    def decode_into_(self, out: Vector, payload: torch.Tensor) -> None:
        """Overwrite ``out`` [N], float32 or scattered, with a decoded payload."""
        out.copy_(self.decode(payload, out.numel()))

    def decode_mean(self, payloads: torch.Tensor, numel: int) -> torch.Tensor:
        """Mean of payloads [W, P], float32 [numel].

        Raises:
            TypeError: the payloads are not uint8.
            ValueError: there are none, or they do not have the length of ``numel`` elements.
        """
        mean = torch.empty(numel, dtype=torch.float32, device=payloads.device)
        self.decode_mean_into_(mean, payloads)
        return mean

    def decode_mean_into_(self, out: Vector, payloads: torch.Tensor) -> None:
        """Overwrite ``out`` [N], float32 or scattered, with the mean of payloads [W, P]; errors as of
        :meth:`decode_mean`."""
        numel = out.numel()
        checks.require_payloads(payloads, self.payload_bytes(numel))
        out.copy_(reference.mean_of(payloads, numel, lambda sums, row: self.decode_add_(sums, row)))

    def encode_mean(
        self,
        payloads: torch.Tensor,
        numel: int,
        seed: int = 0,
        bucket_ids: torch.Tensor | None = None,
        *,
        feedback: Feedback | None = None,
        out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Encode the mean of payloads [W, P]."""
        mean = self.decode_mean(payloads, numel)
        return self.encode(mean, seed, bucket_ids, feedback=feedback, out=out)


def placed(payload: torch.Tensor, out: torch.Tensor | None) -> torch.Tensor:
    """A payload, copied to ``out`` if that is given: for codes that cannot be written into place."""
    return payload if out is None else out.copy_(payload)
