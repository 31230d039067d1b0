"""A picture of what overlaps with what: bytes-gpt on two ranks under torch's profiler.

    python experiments/benchmarks/overlap_trace.py trace.json.gz       # open it in chrome://tracing or Perfetto
    python experiments/benchmarks/overlap_trace.py trace.json.gz --bits 2 --mbit-per-s 100

DDP's buckets are made small, so that the first is on its way while backward computes the others. Rank 0's trace has
backward on the threads of autograd and ``mqgrad.encode``, ``mqgrad.wire`` and ``mqgrad.decode`` on the communication
thread. Printed is how much of the time in each of those falls within backward, and how many buckets overlap with one
another: ``mqgrad.begin`` is a bucket up to its pull, ``mqgrad.end`` the rest. Arrival on an emulated link is not
in the trace. The profiler slows everything down.
"""

import argparse
import gzip
import json
import tempfile
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import script
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile, record_function

import mqgrad
from mqgrad.trainers.link import LinkEmulation
from mqgrad.trainers.workloads.workload import make_workload
from mqgrad.widths import format_width, parse_width

WORLD_SIZE = 2
WARM_UP, ITERATIONS = 5, 4
BUCKET_MIB = 0.5  # of bytes-gpt's 3.2; DDP's own 25 would be one bucket after all of backward
Event: TypeAlias = dict[str, Any]
"""A complete event (``ph`` X) of a Chrome trace: ``ts`` and ``dur`` in microseconds."""
PARTS = ("mqgrad.encode", "mqgrad.wire", "mqgrad.decode")


class Span(NamedTuple):
    """Microseconds from the start of the trace."""

    start: float
    end: float


def train(rank: int, options: argparse.Namespace, store: str) -> None:
    """One rank: a few iterations, the last of them under the profiler."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=WORLD_SIZE)
    torch.manual_seed(0)
    workload = make_workload("bytes-gpt")
    model = workload.build_model()
    optimizer = workload.build_optimizer(model)
    batches = workload.batches(rank, WORLD_SIZE, 0)
    ddp = DistributedDataParallel(model, bucket_cap_mb=BUCKET_MIB)
    link = LinkEmulation(mbit_per_s=options.mbit_per_s) if options.mbit_per_s else None
    state = mqgrad.CompressionState(link=link)
    state.set_width(options.bits)
    ddp.register_comm_hook(state, mqgrad.compression_hook)

    def iterate() -> None:
        optimizer.zero_grad()
        with record_function("forward"):
            loss = workload.loss(ddp, next(batches))
        with record_function("backward"):  # ends when the last bucket is back
            loss.backward()
        optimizer.step()
        state.step(loss)

    for _ in range(WARM_UP):
        iterate()
    all_threads = torch._C._profiler._ExperimentalConfig(profile_all_threads=True)
    with profile(activities=[ProfilerActivity.CPU], experimental_config=all_threads) as profiler:
        for _ in range(ITERATIONS):
            iterate()
    if rank == 0:
        profiler.export_chrome_trace(str(options.trace))
    state.close()
    dist.destroy_process_group()


def spans(events: list[Event], name: str) -> list[Span]:
    """From where to where a name reaches, in order of time."""
    return sorted(Span(e["ts"], e["ts"] + e["dur"]) for e in events if e["name"] == name)


def computing_spans(events: list[Event]) -> list[Span]:
    """Of every backward the part up to its last node: then DDP waits for its buckets."""
    nodes = [e for e in events if e["name"].startswith("autograd::engine::evaluate_function")]
    computed = []
    for backward in spans(events, "backward"):
        ends = [e["ts"] + e["dur"] for e in nodes if backward.start <= e["ts"] < backward.end]
        computed.append(Span(backward.start, max(ends)))
    return computed


def report_buckets(events: list[Event]) -> None:
    """Print how many buckets have begun before the one before them has ended."""
    begins, ends = spans(events, "mqgrad.begin"), spans(events, "mqgrad.end")
    if len(begins) != len(ends):
        return  # not all were coded: an all-reduce has no second half
    overlapping = sum(following.start < end.start for following, end in zip(begins[1:], ends, strict=False))
    print(f"{overlapping} of {len(begins)} buckets end after the next has begun")


def overlap(span: Span, others: list[Span]) -> float:
    """Microseconds of a span that lie within others, which are apart from each other."""
    return sum(max(0.0, min(span.end, other.end) - max(span.start, other.start)) for other in others)


def report(path: Path) -> None:
    """Print, part by part, the time on the communication thread and the share of it within backward."""
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rt") as file:
        events = [event for event in json.load(file)["traceEvents"] if event.get("ph") == "X"]
    computing = computing_spans(events)
    print(
        f"backward computes {sum(s.end - s.start for s in computing) / ITERATIONS / 1e3:.1f} ms per iteration"
    )
    in_all, total = 0.0, 0.0
    for part in PARTS:
        found = spans(events, part)
        if not found:  # at 32 bits nothing is coded
            continue
        seconds = sum(span.end - span.start for span in found)
        within = sum(overlap(span, computing) for span in found)
        in_all, total = in_all + within, total + seconds
        print(
            f"{part:15s} {seconds / ITERATIONS / 1e3:7.1f} ms per iteration, {within / seconds:4.0%} within backward"
        )
    print(
        f"{'together':15s} {total / ITERATIONS / 1e3:7.1f} ms per iteration, {in_all / total:4.0%} within backward"
    )
    report_buckets(events)


def main() -> None:
    parser = script.parser(__doc__)
    parser.add_argument("trace", type=script.output_file, help="file to write, .json or .json.gz")
    parser.add_argument("--bits", type=parse_width, default=4)
    parser.add_argument("--mbit-per-s", type=float, help="emulate a link of this rate; loopback by default")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(train, (options, f"{folder}/store"), nprocs=WORLD_SIZE)
    link = f"{options.mbit_per_s:g} Mbit/s emulated" if options.mbit_per_s else "loopback"
    print(f"bytes-gpt, {WORLD_SIZE} ranks, {format_width(options.bits)} bits, {link}, rank 0:")
    report(options.trace)


if __name__ == "__main__":
    main()
