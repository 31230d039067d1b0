"""Error against bits on the wire of every code: ours, other people's, and the limit for a Gaussian.

    python experiments/benchmarks/rate_distortion.py experiments/results/rate-distortion

Writes ``rate_distortion.json`` and ``.png`` into the folder. Errors are NMSE = ‖Q(x) − x‖² / ‖x‖², of one encoding
without error feedback; bits are 8 × payload bytes / elements, with scales, indices, headers and padding. Our codes go
through the layout of the hook, shard by shard; the peers get each parameter as one tensor. Most of what our codes
send of logreg's 65 elements is padding: a scale bucket for each of four ranks. Nothing is timed, and all but
pi-quant's stochastic rounding, which takes no seed, repeats exactly. It takes two minutes; peers: ``bench/peers.py``,
the size of a scale bucket: ``scale_choices.py``.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import script
import torch
from gradient_sources import WORLD_SIZE, Source, recorded, synthetic
from rate_plot import plot

from mqgrad import cuda_ext
from mqgrad.codecs.codec import codec_at
from mqgrad.codecs.rotation import ROTATED_WIDTHS, RotationCodec
from mqgrad.codecs.vector_codec import VectorCodec
from mqgrad.compressors.gradient_vector import GradientVector
from mqgrad.cuda_ext.reference_rotation import SEED_BYTES
from mqgrad.experiments.bench.peers import find_peers
from mqgrad.widths import CODED_WIDTHS, SPARSE_WIDTHS, Width, format_width

SEED = 1
WORKLOADS = ("digits-cnn", "bytes-gpt", "bytes-lstm", "logreg")
BUCKET_SIZE = 512  # the default


class Sent(NamedTuple):
    """What became of gradients on their way."""

    elements: int
    wire_bytes: int
    error_sq: float
    norm_sq: float


class Code(NamedTuple):
    """One way to send a source at one width."""

    family: str
    bits: Width
    send: Callable[[Source], Sent]


class Point(NamedTuple):
    """One code on one source."""

    source: str
    family: str
    bits: Width
    wire_bits: float
    nmse: float

    @property
    def excess_bits(self) -> float:
        """Bits beyond what a Gaussian of the same error needs, ½·log2(1/NMSE)."""
        return self.wire_bits + math.log2(self.nmse) / 2


def send_coded(
    source: Source,
    codec: VectorCodec,
    bucket_size: int = BUCKET_SIZE,
    scales: torch.dtype = torch.float32,
) -> Sent:
    """As the collective's push does. Scales of another type are rounded in the payload and counted as such."""
    layout = source.layout(bucket_size)
    vector = GradientVector(layout, source.gradients).part(slice(0, layout.numel))
    flat = vector.continued(bucket_size) if codec.repeats_padding else vector.gathered()
    decoded, wire_bytes, shard = torch.empty_like(flat), 0, layout.shard_numel
    for start in range(0, layout.numel, shard):
        ids = layout.bucket_ids[start // bucket_size : (start + shard) // bucket_size]
        payload = codec.encode(flat[start : start + shard], SEED, ids)
        if scales != torch.float32:
            begin = SEED_BYTES if isinstance(codec, RotationCodec) else 0
            scales_B = payload[begin : begin + 4 * len(ids)].view(torch.float32)
            scales_B.copy_(scales_B.to(scales))
            wire_bytes -= (4 - scales.itemsize) * len(ids)
        wire_bytes += payload.numel()
        decoded[start : start + shard] = codec.decode(payload, shard)
    return sent_as(source.gradients, layout.views(decoded), wire_bytes)


def send_minmax(source: Source, bits: Width) -> Sent:
    """MQGrad as published, of the matrices only: it leaves all other gradients in fp32."""
    matrices = [gradient.t().contiguous() for gradient in source.gradients if gradient.ndim == 2]
    payloads = [cuda_ext.encode_minmax(matrix, int(bits)) for matrix in matrices]
    decoded = [
        cuda_ext.decode_minmax(payload, matrix.shape[0], matrix.shape[1], int(bits))
        for payload, matrix in zip(payloads, matrices, strict=True)
    ]
    return sent_as(matrices, decoded, sum(payload.numel() for payload in payloads))


def send_by_peer(source: Source, index: int) -> Sent:
    """Every parameter by the peer of this index in ``find_peers``."""
    decoded, wire_bytes = [], 0
    for gradient in source.gradients:
        coder = find_peers(gradient.numel(), 1)[0][index]
        out = torch.zeros(gradient.numel())
        coder.decode_add(out, coder.encode(gradient.reshape(-1).contiguous()))
        decoded.append(out)
        scales = (
            -(-gradient.numel() // 512) if coder.name == "bitsandbytes" else 2
        )  # pi-quant: scale, zero point
        wire_bytes += -(-gradient.numel() * int(coder.bits) // 8) + 4 * scales
    return sent_as(source.gradients, decoded, wire_bytes)


def sent_as(gradients: Sequence[torch.Tensor], decoded: Sequence[torch.Tensor], wire_bytes: int) -> Sent:
    pairs = [
        (x.double().reshape(-1), y.double().reshape(-1)) for x, y in zip(gradients, decoded, strict=True)
    ]
    return Sent(
        elements=sum(len(x) for x, _ in pairs),
        wire_bytes=wire_bytes,
        error_sq=sum(float((y - x).square().sum()) for x, y in pairs),
        norm_sq=sum(float(x.square().sum()) for x, _ in pairs),
    )


def all_codes() -> tuple[list[Code], list[str]]:
    """Everything that can be drawn here, and why the rest cannot."""
    nearest = partial(codec_at, bucket_size=BUCKET_SIZE)
    stochastic = partial(nearest, rounding="stochastic")
    rotated = partial(RotationCodec, bucket_size=BUCKET_SIZE, unbiased=False)
    unbiased = partial(rotated, unbiased=True)
    codes = [
        *_coded("sparse", nearest, SPARSE_WIDTHS),
        *_coded("uniform, nearest", nearest, CODED_WIDTHS),
        *_coded("uniform, stochastic", stochastic, CODED_WIDTHS),
        *_coded("rotation, contractive", rotated, ROTATED_WIDTHS),
        *_coded("rotation, unbiased", unbiased, ROTATED_WIDTHS),
        *_coded("bfloat16", nearest, (16,)),
        *[Code("MQGrad min-max (matrices)", b, partial(send_minmax, bits=b)) for b in CODED_WIDTHS],
    ]
    peers, skipped = find_peers(8, 1)
    codes += [
        Code(peer.name, peer.bits, partial(send_by_peer, index=i))
        for i, peer in enumerate(peers)
        if peer.name != "torch bfloat16"  # ours is torch's own
    ]
    return codes, [f"{name}: {reason}" for name, reason in skipped]


def _coded(family: str, codec: Callable[..., VectorCodec], widths: Sequence[Width]) -> list[Code]:
    return [Code(family, b, partial(send_coded, codec=codec(bits=b))) for b in widths]


def measure(source: Source, code: Code) -> Point:
    sent = code.send(source)
    wire_bits = 8 * sent.wire_bytes / sent.elements
    return Point(source.name, code.family, code.bits, wire_bits, sent.error_sq / sent.norm_sq)


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)  # the same sums everywhere
    sources = [*synthetic(), *(source for name in WORKLOADS for source in recorded(name))]
    codes, skipped = all_codes()
    points = [measure(source, code) for source in sources for code in codes]
    rows = [point._asdict() for point in points]
    report = {
        "bucket_size": BUCKET_SIZE,
        "world_size": WORLD_SIZE,
        "elements": {source.name: source.numel for source in sources},
        "skipped": skipped,
        "points": rows,
    }
    script.write_report(folder / "rate_distortion.json", report)
    plot(rows, folder / "rate_distortion.png")
    for point in points:
        figures = f"{point.wire_bits:7.3f} bits  NMSE {point.nmse:.3e}  {point.excess_bits:+.3f} beyond"
        print(f"{point.source:28s} {point.family:26s} {format_width(point.bits):>4s} {figures}")


if __name__ == "__main__":
    parser = script.parser(__doc__)
    parser.add_argument("folder", type=Path, help="to write to")
    main(parser.parse_args().folder)
