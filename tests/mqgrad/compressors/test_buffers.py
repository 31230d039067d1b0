"""Payloads are coded into what is sent and decoded from what is received: nothing there may change too early."""

import concurrent.futures
from collections.abc import Callable
from typing import Any

import pytest
import torch
from layouts import layout_of

from mqgrad.codecs.codec import codec_at
from mqgrad.codecs.onebit import OneBitCodec
from mqgrad.codecs.rotation import RotationCodec, few_bits_rotated
from mqgrad.codecs.vector_codec import Feedback, VectorCodec
from mqgrad.collectives.wire_meter import Pending
from mqgrad.compressors import make_compressor, segments
from mqgrad.compressors.base import BucketWork, Step
from mqgrad.costs import Costs
from mqgrad.trainers.clusters.in_process import InProcessTransport, MeetingPoint
from mqgrad.widths import Width

NUMELS = (7000, 37, 20_000, 512)


class LateTransport(InProcessTransport):
    """Reads what is sent only when somebody waits for it, which is as late as a real network may."""


def _late(start: Callable[..., Pending[Any]]) -> Callable[..., Pending[Any]]:
    return lambda *arguments: Pending(lambda: start(*arguments).wait())


for _name in ("start_gather", "start_fan_out", "start_all_to_all", "start_joined_all_gather"):
    setattr(LateTransport, _name, _late(getattr(InProcessTransport, _name)))


@pytest.mark.parametrize("topology", ["sharded", "star"])
@pytest.mark.parametrize(
    ("compressor", "bits", "parameter_bits"),
    [
        ("quantized", 0.25, None),
        ("quantized", 2, None),
        ("quantized", 4, None),
        ("quantized", 16, None),
        ("quantized", 0, (3, 32, 16, 5)),
        ("qsgd", 0, (32, 32, 8, 2)),
        ("onebit", 1, None),
        ("terngrad", 2, None),
    ],
)
def test_payloads_stay_as_they_are_while_they_are_on_their_way(
    compressor: str,
    bits: Width,
    parameter_bits: tuple[Width, ...] | None,
    topology: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A buffer that is used again while an earlier chunk is still being sent from it changes the mean."""
    monkeypatch.setattr(segments, "CHUNK_BYTES", 64)
    spec = f"{compressor}:topology={topology}"
    at_once, late = (_means(kind, spec, bits, parameter_bits) for kind in (InProcessTransport, LateTransport))
    assert all(torch.equal(mean, at_once[0]) for mean in [*at_once, *late])


def _means(
    transport: type[InProcessTransport],
    spec: str,
    bits: Width,
    parameter_bits: tuple[Width, ...] | None,
    world_size: int = 3,
) -> list[torch.Tensor]:
    """On each rank the means of three iterations, [3, sum of NUMELS]."""
    meeting_point = MeetingPoint(world_size, timeout_seconds=60)

    def rank_main(rank: int) -> torch.Tensor:
        compressor = make_compressor(spec)
        parameters = [torch.zeros(numel) for numel in NUMELS]
        layout = layout_of(parameters, bucket_size=compressor.bucket_size, world_size=world_size)
        means = []
        for iteration in range(3):
            generator = torch.Generator().manual_seed(world_size * iteration + rank)
            buffer = torch.randn(sum(NUMELS), generator=generator)
            work = BucketWork(buffer, list(buffer.split(list(NUMELS))), layout)
            wire = transport(meeting_point, rank)
            compressor.start_average_(
                work, Step(wire, bits, iteration, 7, Costs(), True, parameter_bits)
            ).wait()
            means.append(buffer)
        return torch.stack(means)

    with concurrent.futures.ThreadPoolExecutor(world_size) as threads:
        return list(threads.map(rank_main, range(world_size)))


CODECS: list[VectorCodec] = [
    *(codec_at(bits, bucket_size=64, rounding="stochastic") for bits in (0.25, 1, 3, 4, 8, 16, 32)),
    *(few_bits_rotated(bits, 64) for bits in (0.5, 1, 2, 3, 4)),
    *(RotationCodec(bits=bits, bucket_size=64, unbiased=False) for bits in (1, 4)),
    OneBitCodec(64),
]


@pytest.mark.parametrize("codec", CODECS, ids=str)
@pytest.mark.parametrize("with_feedback", [False, True])
def test_a_payload_can_be_a_piece_of_a_message(codec: VectorCodec, with_feedback: bool) -> None:
    """Written and read in place, wherever it begins, and nothing around it is touched."""
    x, residual = torch.randn(2, 6 * 64, generator=torch.Generator().manual_seed(5)).unbind()

    def coded(out: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
        if not with_feedback:
            return codec.encode(x, 3, out=out), residual
        kept = residual.clone()
        return codec.encode(x, 3, feedback=Feedback(kept), out=out), kept

    expected, expected_residual = coded(None)
    assert len(expected) == codec.payload_bytes(x.numel())
    message = torch.full((len(expected) + 2,), 171, dtype=torch.uint8)
    piece = message[1:-1]
    payload, kept = coded(piece)
    assert payload.data_ptr() == piece.data_ptr()
    assert torch.equal(piece, expected)
    assert torch.equal(kept, expected_residual)
    assert message[0] == message[-1] == 171
    assert torch.equal(codec.decode(piece, x.numel()), codec.decode(expected, x.numel()))


@pytest.mark.parametrize("codec", CODECS, ids=str)
def test_the_mean_of_pieces_is_that_of_payloads(codec: VectorCodec) -> None:
    """The payloads of a segment are columns of the messages that ranks have sent."""
    xs = torch.randn(3, 6 * 64, generator=torch.Generator().manual_seed(6))
    payloads = torch.stack([codec.encode(x, seed) for seed, x in enumerate(xs)])
    messages = torch.nn.functional.pad(payloads, (1, 2))
    expected = codec.encode_mean(payloads, 6 * 64, 4, feedback=Feedback(torch.ones(6 * 64)))
    assert torch.equal(
        codec.encode_mean(messages[:, 1:-2], 6 * 64, 4, feedback=Feedback(torch.ones(6 * 64))), expected
    )
    accumulated = torch.zeros(6 * 64)
    for payload in payloads:
        codec.decode_add_(accumulated, payload)
    assert torch.equal(codec.decode_mean(messages[:, 1:-2], 6 * 64), accumulated / 3)
