"""What the default compressor's scales cost and gain: elements a scale, their precision, and where the scale is put.

    python experiments/benchmarks/scale_choices.py experiments/results/rate-distortion/scales.json

On gradients recorded in training, early and late, and on a Gaussian. Errors are NMSE = ‖Q(x) − x‖² / ‖x‖² of one
encoding without error feedback, bits those on the wire with scales and padding (``rate_distortion.py``). Nothing is
timed; it repeats exactly and takes a minute.

- Elements a scale and precision: the default compressor's codes, unbiased rotation at 1–3 bits, nearest uniform
  levels above. Scales of two bytes are rounded in the payload and counted as such; no code here sends them.
- Place: for rotation the two scales it has; for nearest rounding the largest magnitude, the one in use, and the best
  of 100 clips for each bucket, which is what a search could gain at most.
"""

from collections.abc import Sequence
from functools import partial

import script
import torch
from gradient_sources import Source, recorded, synthetic
from rate_distortion import Code, measure, send_coded, sent_as

from mqgrad.codecs.codec import codec_at
from mqgrad.codecs.rotation import FEW_BITS, RotationCodec, few_bits_rotated

BUCKET_SIZE = 512  # the default
BUCKET_SIZES = (128, 256, 512, 1024, 2048, 4096)
PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
WIDTHS = (1, 2, 3, 4, 8)
WORKLOADS = ("digits-cnn", "bytes-gpt")
GAUSSIAN = "Gaussian"
CLIPS = torch.arange(1, 101) / 100

Row = dict[str, float | int | str]


def measure_sizes(source: Source) -> list[Row]:
    """NMSE and wire bits of the default code by width, elements a scale and precision of the scale."""
    rows: list[Row] = []
    for bits in WIDTHS:
        for size in BUCKET_SIZES:
            codec = few_bits_rotated(bits, size)
            for name, dtype in PRECISIONS.items():
                send = partial(send_coded, codec=codec, bucket_size=size, scales=dtype)
                point = measure(source, Code("", bits, send))
                figures = {"wire_bits": point.wire_bits, "nmse": point.nmse, "excess_bits": point.excess_bits}
                rows.append(
                    {"source": source.name, "bits": bits, "bucket_size": size, "scales": name, **figures}
                )
    return rows


def measure_places(source: Source) -> list[Row]:
    """NMSE by where the scale is put, 512 elements each."""
    rows: list[Row] = []
    for bits in WIDTHS:
        errors = rotated_errors(source, bits) if bits in FEW_BITS else nearest_errors(source, bits)
        rows += [
            {"source": source.name, "bits": bits, "place": place, "nmse": e} for place, e in errors.items()
        ]
    return rows


def rotated_errors(source: Source, bits: int) -> dict[str, float]:
    codecs = {
        place: RotationCodec(bits=bits, bucket_size=BUCKET_SIZE, unbiased=unbiased)
        for place, unbiased in (("unbiased (in use)", True), ("least error", False))
    }
    return {
        place: measure(source, Code("", bits, partial(send_coded, codec=codec))).nmse
        for place, codec in codecs.items()
    }


def nearest_errors(source: Source, bits: int) -> dict[str, float]:
    codec = codec_at(bits, bucket_size=BUCKET_SIZE)
    in_use = measure(source, Code("", bits, partial(send_coded, codec=codec))).nmse
    x_BN = source.layout(BUCKET_SIZE).pack(source.gradients).view(-1, BUCKET_SIZE)
    max_B = x_BN.abs().amax(1)
    errors_CB = torch.stack([error_sq(x_BN, rounded(x_BN, clip * max_B, bits)) for clip in CLIPS])
    best_B = CLIPS[errors_CB.argmin(0)] * max_B
    return {
        "largest magnitude": nmse(source, rounded(x_BN, max_B, bits)),
        "in use": in_use,
        "best clip": nmse(source, rounded(x_BN, best_B, bits)),
    }


def rounded(x_BN: torch.Tensor, scale_B: torch.Tensor, bits: int) -> torch.Tensor:
    """To the nearest of uniform levels up to each bucket's scale."""
    levels = 2 ** (bits - 1) - 1
    step_B1 = (scale_B / levels).unsqueeze(1)
    return (x_BN / step_B1.where(step_B1 > 0, 1)).round().clamp(-levels, levels) * step_B1


def error_sq(x_BN: torch.Tensor, rounded_BN: torch.Tensor) -> torch.Tensor:
    return (rounded_BN - x_BN).double().square().sum(1)


def nmse(source: Source, rounded_BN: torch.Tensor) -> float:
    """Over the parameters, without what pads them."""
    views = source.layout(BUCKET_SIZE).views(rounded_BN.flatten())
    sent = sent_as(source.gradients, views, wire_bytes=0)
    return sent.error_sq / sent.norm_sq


def print_sizes(rows: Sequence[Row], precision: str) -> None:
    """Bits beyond the limit for a Gaussian of that error, mean over the recorded gradients; less is better."""
    lines = []
    for bits in WIDTHS:
        cells = []
        for size in BUCKET_SIZES:
            key = (bits, size, precision)
            chosen = [r for r in rows if (r["bits"], r["bucket_size"], r["scales"]) == key]
            excess = [float(r["excess_bits"]) for r in chosen if r["source"] != GAUSSIAN]
            cells.append(f"{sum(excess) / len(excess):.3f}")
        lines.append((bits, *cells))
    print()
    script.print_markdown((precision, *BUCKET_SIZES), lines)


def print_places(rows: Sequence[Row]) -> None:
    sources = list(dict.fromkeys(row["source"] for row in rows))
    lines = []
    for bits, place in dict.fromkeys((row["bits"], row["place"]) for row in rows):
        cells = (f"{r['nmse']:.3g}" for r in rows if (r["bits"], r["place"]) == (bits, place))
        lines.append((bits, place, *cells))
    print()
    script.print_markdown(("bits", "scale", *sources), lines)


def main() -> None:
    parser = script.parser(__doc__)
    parser.add_argument("json", type=script.output_file, help="file to write")
    options = parser.parse_args()
    torch.set_num_threads(1)  # the same sums everywhere
    sources = [source for name in WORKLOADS for source in recorded(name)]
    sources += [source for source in synthetic() if source.name == GAUSSIAN]
    sizes = [row for source in sources for row in measure_sizes(source)]
    places = [row for source in sources for row in measure_places(source)]
    script.write_report(options.json, {"sizes": sizes, "places": places})
    for precision in PRECISIONS:
        print_sizes(sizes, precision)
    print_places(places)


if __name__ == "__main__":
    main()
