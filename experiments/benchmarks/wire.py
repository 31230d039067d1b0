"""How full the wire is: the compressed mean on links shaped by the kernel, beside bits on the wire ÷ line rate.

    python experiments/benchmarks/wire.py wire.json           # four hosts at 100mbit, 1gbit, 10gbit
    python experiments/benchmarks/wire.py two.json --hosts 2  # which gather codes, a core each on two cores
    mqgrad netlab --hosts 4 --rate 1gbit -- python experiments/benchmarks/wire.py 1gbit.json --rates 1gbit

Averages 16 MiB of Gaussian gradient, and the DDP buckets of bytes-gpt, each begun before the one before it ends, at
every width, encoding and decoding included. ``line`` is the time of the bits on the wire at the link's rate: of all
packets that a rank sends, with their headers and acknowledgements, as the link's token bucket charges for them. The
goal is a ratio of at most 1/0.95 where latency does not rule, which is that of collectives of a few bytes.
``to payload`` is the same time over that of the payload alone, by our accounting; no TCP gets below 1.05 there.
``counted`` is what the interface's counter saw over the accounting: the kernel moves several packets as one with one
header, so this is up to 5 % less than on a cable. All three take two minutes, and need root.
"""

import argparse
import gc
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import script
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from wire_figures import WireFigures, count_bytes

from mqgrad.collectives.comm_thread import CommThread
from mqgrad.collectives.own_group import own_group
from mqgrad.collectives.process_group import ProcessGroupTransport
from mqgrad.collectives.transport import Transport
from mqgrad.compressors import Quantized
from mqgrad.compressors.base import BucketWork
from mqgrad.costs import Costs
from mqgrad.experiments.bench.transport import average, combine_ranks, gradient_work, median
from mqgrad.experiments.netlab.job import TIMEOUT_STATUS, log_tail
from mqgrad.experiments.netlab.lab import NetLab
from mqgrad.experiments.netlab.link import LinkShape, parse_link_rate
from mqgrad.experiments.netlab.run import run_on_new_lab
from mqgrad.experiments.netlab.tcp import DEFAULT_CONGESTION_CONTROL
from mqgrad.experiments.provenance import describe_run
from mqgrad.hook.layout_table import LayoutTable
from mqgrad.trainers.workloads.workload import make_workload
from mqgrad.widths import Width, format_width, parse_width

RATES = "100mbit,1gbit,10gbit"
WIDTHS = "1/16,1/4,1,2,4,8,16,32"
GOAL = 1 / 0.95


def main() -> None:
    parser = script.parser(__doc__)
    parser.add_argument("json", type=script.output_file, help="file to write")
    parser.add_argument("--hosts", type=script.count, default=4)
    parser.add_argument(
        "--topology", default="auto", help="who takes the mean, as quantized has it: %(default)s"
    )
    parser.add_argument("--rates", default=RATES, help="of the links, as mqgrad netlab takes them")
    parser.add_argument("--widths", type=script.listed(parse_width), default=WIDTHS)
    parser.add_argument("--mebibytes", type=float, default=16.0, help="of the Gaussian gradient")
    parser.add_argument("--rounds", type=script.count, default=5)
    parser.add_argument(
        "--tcp", default=DEFAULT_CONGESTION_CONTROL, help="congestion control of the labs' hosts: %(default)s"
    )
    parser.add_argument(
        "--time-limit", type=float, default=78.0, metavar="SECONDS", help="of one rate: %(default)g"
    )
    options = parser.parse_args()
    for rate in options.rates.split(","):
        try:
            if parse_link_rate(rate) is None:
                parser.error(f"--rates {options.rates}: a wire without a rate cannot be full")
        except ValueError as error:
            parser.error(f"--rates {options.rates}: {error}")
    if "RANK" in os.environ:
        if "," in options.rates:
            parser.error(f"--rates {options.rates}: on the hosts of a lab give the lab's one rate")
        measure_on_host(options)
    else:
        sys.exit(measure_on_labs(options))


def measure_on_labs(options: argparse.Namespace) -> int:
    """One lab after another; returns the exit status."""
    report = {
        **describe_run(quick=False, of_labs=True),
        "hosts": options.hosts,
        "topology": options.topology,
        "tcp": options.tcp,
        "figures": [],
    }
    for rate in options.rates.split(","):
        with tempfile.TemporaryDirectory() as folder:
            part = Path(folder) / "part.json"
            chosen = [
                f"--widths={','.join(map(format_width, options.widths))}",
                f"--mebibytes={options.mebibytes}",
                f"--rounds={options.rounds}",
                f"--topology={options.topology}",
            ]
            command = [sys.executable, __file__, str(part), f"--rates={rate}", *chosen]
            link = LinkShape(rate_mbit_per_s=parse_link_rate(rate))
            lab = NetLab(options.hosts, link, congestion_control=options.tcp)
            result = run_on_new_lab(
                lab, command, Path(folder) / "logs", time_limit_seconds=options.time_limit
            )
            if result.status != 0:
                failed = [host.rank for host in result.hosts if host.ending == "failed"]
                log = log_tail(Path(folder) / "logs", failed[0] if failed else 0)
                remedy = "; --time-limit gives it more" if result.status == TIMEOUT_STATUS else ""
                print(f"{rate}: {result.outcome}{remedy}\n{log}", file=sys.stderr)
                return result.status
            report["figures"] += json.loads(part.read_text())["figures"]
        script.write_report(options.json, report)  # what is measured stays if the next rate fails
    return 0


def measure_on_host(options: argparse.Namespace) -> None:
    """One rank of one lab; rank 0 prints and writes."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    transport = ProcessGroupTransport(own_group(None, options.time_limit))
    thread = CommThread()  # as the hook has one
    for _ in range(5):
        transport.all_gather(torch.zeros(8, dtype=torch.uint8))  # tells the transport its latency
    transport.move_costs(Costs())
    gradients = {
        f"{options.mebibytes:g} MiB": [gradient_work(options.mebibytes, Quantized().bucket_size)],
        "bytes-gpt": model_buckets("bytes-gpt"),
    }
    figures = [
        measure(transport, thread, works, compressor(options.topology, bits), bits, name, options)
        for name, works in gradients.items()
        for bits in options.widths
    ]
    if dist.get_rank() == 0:
        print_figures(figures)
        report = {"hosts": dist.get_world_size(), "topology": options.topology, **describe_run(quick=False)}
        script.write_report(options.json, {**report, "figures": [each.to_dict() for each in figures]})
    dist.barrier()
    thread.close()
    transport.close()
    dist.destroy_process_group()


def model_buckets(workload_name: str) -> list[BucketWork]:
    """The gradients of one backward as DDP hands them to a hook, once it has regrouped its buckets."""
    torch.manual_seed(0)
    workload = make_workload(workload_name)
    ddp = DistributedDataParallel(workload.build_model())
    layouts = LayoutTable(bucket_size=Quantized().bucket_size, world_size=dist.get_world_size())
    works: list[BucketWork] = []

    def keep(_: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        layout, gradients = layouts.of(bucket)
        works.append(BucketWork(bucket.buffer(), gradients, layout))
        future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        future.set_result(bucket.buffer())
        return future

    ddp.register_comm_hook(None, keep)
    batches = workload.batches(dist.get_rank(), dist.get_world_size(), 0)
    for _ in range(2):  # DDP regroups after the first
        works.clear()
        workload.loss(ddp, next(batches)).backward()
    del ddp
    gc.collect()  # it is part of a cycle, and holds the process group: see ProcessGroupTransport.close
    return works


def compressor(topology: Any, bits: Width) -> Quantized:
    return Quantized(error_feedback=bits != 32, topology=topology)


def measure(
    transport: Transport,
    thread: CommThread,
    works: Sequence[BucketWork],
    compressor: Quantized,
    bits: Width,
    gradients: str,
    options: argparse.Namespace,
) -> WireFigures:
    """Average the same gradients again and again; the counter is read when everything has passed."""
    rate, rounds = options.rates, options.rounds
    original = [work.buffer.clone() for work in works]
    costs: list[Costs] = []

    def run(iteration: int) -> None:
        for work, buffer in zip(works, original, strict=True):
            work.buffer.copy_(buffer)
        costs.append(thread.run(partial(average, compressor, transport, works, bits, iteration)))

    run(0)  # warms up
    idle = count_bytes(dist.barrier, rounds)  # each round begins with one
    busy = count_bytes(lambda: run(len(costs)), rounds)
    combined = combine_ranks([{bits: each} for each in costs[1:]])[bits]
    by_rank: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(by_rank, [(b - i) / rounds for b, i in zip(busy, idle, strict=True)])
    counted, charged = (statistics.mean(figures) for figures in zip(*by_rank, strict=True))
    sent = median(combined, "wire_bytes")
    mbit_per_s = parse_link_rate(rate)
    assert mbit_per_s is not None
    return WireFigures(
        rate=rate,
        gradients=gradients,
        bits=bits,
        seconds=median(combined, "step_seconds"),
        wire_seconds=median(combined, "wire_seconds"),
        encode_seconds=median(combined, "encode_seconds"),
        decode_seconds=median(combined, "decode_seconds"),
        sent_bytes=sent,
        counted_bytes=counted,
        charged_bytes=charged,
        line_seconds=8 * charged / (mbit_per_s * 1e6),
        payload_seconds=8 * sent / (mbit_per_s * 1e6),
        latency_seconds=median(combined, "fixed_wire_seconds"),
    )


def print_figures(figures: Sequence[WireFigures]) -> None:
    heads = ("ms", "blocked", "coding", "line", "latency", "ratio")
    print(
        f"{'rate':>10}{'gradients':>12}{'bits':>6}"
        + "".join(f"{h:>10}" for h in heads)
        + "  above latency  to payload   counted"
    )
    for f in figures:
        coding = f.encode_seconds + f.decode_seconds
        milliseconds = (f.seconds, f.wire_seconds, coding, f.line_seconds, f.latency_seconds)
        cells = "".join(f"{1e3 * seconds:10.2f}" for seconds in milliseconds)
        goal = "" if f.ratio_above_latency <= GOAL else "  above 1/0.95"
        ratios = (
            f"{f.ratio:10.3f}{f.ratio_above_latency:15.3f}{f.ratio_to_payload:12.3f}{f.counted_ratio:10.3f}"
        )
        print(f"{f.rate:>10}{f.gradients:>12}{format_width(f.bits):>6}{cells}{ratios}{goal}", flush=True)


if __name__ == "__main__":
    main()
