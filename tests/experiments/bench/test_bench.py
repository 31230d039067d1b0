"""The benchmark: arithmetic on hand-made numbers, and what tiny real runs report. No timing is asserted."""

import dataclasses
import json
import math
import sys
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from ranks import run_ranks
from typer.testing import CliRunner

from mqgrad.collectives.process_group import ProcessGroupTransport
from mqgrad.collectives.wire_meter import Pending
from mqgrad.compressors import Quantized
from mqgrad.compressors.base import BucketWork, Step
from mqgrad.cuda_ext import CHECKSUM_BYTES
from mqgrad.experiments.bench import codec as bench_codec
from mqgrad.experiments.bench import peers as bench_peers
from mqgrad.experiments.bench.break_even import break_even_mbit_per_s, break_even_rates
from mqgrad.experiments.bench.codec import Operation, measure_codec, time_in_turn
from mqgrad.experiments.bench.coders import Coder, Skipped
from mqgrad.experiments.bench.ranks import TransportSettings, measure_locally, measure_on_rank
from mqgrad.experiments.bench.repetitions import (
    LEAST_ROUNDS,
    Variant,
    iterations_within,
    rounds_within,
)
from mqgrad.experiments.bench.steps import StepFigures
from mqgrad.experiments.bench.tables import format_rate, ratio_table
from mqgrad.experiments.bench.transport import average, gradient_work
from mqgrad.experiments.cli import app
from mqgrad.experiments.error_line import error_line
from mqgrad.trainers.clusters.errors import WorkerError

SMALL = 1 / 64  # MiB: 4096 elements


def step(
    bits: int | None, extra_seconds: float, *, codec_seconds: float = 0.0, wire_bytes: float = 0.0
) -> StepFigures:
    return StepFigures(
        bits=bits,
        step_seconds=0.1 + extra_seconds,
        per_plain=1 + extra_seconds / 0.1,
        per_plain_range=(1 + extra_seconds / 0.1, 1 + extra_seconds / 0.1),
        extra_seconds=extra_seconds,
        encode_seconds=codec_seconds / 2,
        wire_seconds=0.0,
        decode_seconds=codec_seconds / 2,
        wire_bytes=wire_bytes,
        rounds=1,
        iterations=1,
    )


def no_peers(numel: int, threads: int) -> tuple[list[Coder], list[Skipped]]:
    return [], []


def test_break_even_is_bits_saved_over_seconds_spent() -> None:
    assert break_even_mbit_per_s(saved_bytes=1e6, extra_seconds=0.008) == pytest.approx(1000.0)
    assert break_even_mbit_per_s(saved_bytes=1e6, extra_seconds=0.0) is None
    assert break_even_mbit_per_s(saved_bytes=0.0, extra_seconds=0.0) == 0.0
    assert (format_rate(None), format_rate(12345.6)) == ("any rate", "12,346")


def test_break_even_counts_all_that_the_step_takes() -> None:
    # 4 ranks, 1 M parameters: a ring all-reduce sends 2 · 3/4 · 4 MB = 6 MB a rank. 10 Gbit/s: 1.25 MB in 1 ms.
    steps = [
        step(None, 0.0),
        step(32, 0.002, wire_bytes=6e6),
        step(4, 0.005, codec_seconds=0.001, wire_bytes=0.75e6),
        step(8, -0.010, wire_bytes=1.5e6),
    ]
    four, eight = break_even_rates(steps, world_size=4, gradient_bytes=4 * 10**6, link_mbit_per_s=10_000)
    assert (four.bits, four.saved_bytes) == (4, 5.25e6)
    assert four.extra_seconds == pytest.approx(0.005 + 0.0042)
    assert four.mbit_per_s == pytest.approx(8 * 5.25 / 0.0092)
    assert eight.mbit_per_s is None  # faster by more than its bytes explain


def test_break_even_is_the_link_itself_where_the_step_is_as_long_as_plain_ddps() -> None:
    steps = [step(None, 0.0), step(4, 0.0, wire_bytes=10.0)]
    (four,) = break_even_rates(steps, world_size=2, gradient_bytes=400, link_mbit_per_s=250.0)
    assert four.mbit_per_s == pytest.approx(250.0)


def test_operations_are_timed_in_turn() -> None:
    calls: list[str] = []
    operations = [Operation("a", lambda: calls.append("a")), Operation("b", lambda: calls.append("b"))]
    seconds = time_in_turn(operations, rounds=2)
    assert calls == ["a", "b"] * 3
    assert {name: len(values) for name, values in seconds.items()} == {"a": 2, "b": 2}


def test_every_width_and_the_hooks_own_code_is_measured() -> None:
    threads = torch.get_num_threads()
    report = measure_codec(
        no_peers, mebibytes=SMALL, rounds=1, widths=(1 / 8, 1, 4, 16), thread_counts=(1, 2)
    )
    assert torch.get_num_threads() == threads
    coders = [(1 / 8, "hook, sparse"), (1, "hook, rotated"), (4, "hook, nearest"), (16, "hook, bfloat16")]
    coders += [(1, "stochastic"), (4, "stochastic"), (1, "nearest"), (4, "nearest"), (16, "bfloat16")]
    found = [(f.bits, f.coder, f.threads) for f in report.figures]
    assert sorted(found) == sorted((*coder, threads) for coder in coders for threads in (1, 2))
    assert all(f.encode_gb_per_s > 0 and math.isfinite(f.round_trip_per_copy) for f in report.figures)
    assert all(f.copy_gb_per_s == max(f.memmove_gb_per_s, f.torch_copy_gb_per_s) for f in report.figures)
    assert all((f.mean_gb_per_s is not None) == f.coder.startswith("hook") for f in report.figures)
    nmse = {(f.coder, f.bits): f.nmse for f in report.figures}
    assert nmse["nearest", 1] == pytest.approx(1 - 2 / math.pi, rel=0.05)
    assert nmse["hook, rotated", 1] == pytest.approx(math.pi / 2 - 1, rel=0.1)
    assert nmse["hook, nearest", 4] == nmse["nearest", 4] < 0.02
    assert 0.5 < nmse["hook, sparse", 1 / 8] < 1


def test_ours_is_compared_with_peers_of_equal_width() -> None:
    report = measure_codec(no_peers, mebibytes=SMALL, rounds=1, widths=(4, 8), thread_counts=(1,))
    nearest = report.figures[0]
    speed, error = nearest.round_trip_per_copy / 2, 4 * nearest.nmse
    peer = dataclasses.replace(nearest, coder="a peer", round_trip_per_copy=speed, nmse=error)
    _, name, *codes = ratio_table(report.figures, [peer]).columns
    assert list(name.cells) == ["a peer"]
    assert [str(code.header).split("\n")[0] for code in codes] == ["nearest", "stochastic", "hook"]
    assert list(codes[0].cells) == ["2.00, 0.25"]


def test_the_error_of_a_coder_whose_calls_differ_is_a_mean() -> None:
    x, factors = torch.ones(8), iter((1.0, 0.0, 1.0, 1.0))  # the last two: what is timed
    coder = Coder(
        "one scale a call", 1, lambda x: next(factors, 1.0) * x, lambda out, y: out.add_(y), error_calls=2
    )
    (figures,) = bench_codec.measure_group([coder], x, threads=1, rounds=1)
    assert figures.nmse == 0.5


def test_a_peer_that_is_missing_is_named_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    for package in ("piquant", "bitsandbytes", "bitsandbytes.functional"):
        monkeypatch.setitem(sys.modules, package, None)
    coders, skipped = bench_peers.find_peers(512, 1)
    assert [coder.name for coder in coders] == ["torch bfloat16"]
    assert [(s.name, s.reason.partition(":")[0]) for s in skipped] == [
        ("pi-quant", "ModuleNotFoundError"),
        ("bitsandbytes", "ModuleNotFoundError"),
    ]


def test_every_peer_at_hand_decodes_what_it_encoded() -> None:
    x = torch.randn(4096, generator=torch.Generator().manual_seed(0))
    coders, _ = bench_peers.find_peers(x.numel(), 1)
    figures = list(bench_codec.measure_group(coders, x, threads=1, rounds=1))
    for each in figures:
        largest = {2: 1.0, 4: 0.1}.get(each.bits, 0.01)  # what decodes to zeros has 1
        assert each.nmse < (2 * largest if "stochastic" in each.coder else largest), each.coder


def test_the_command_writes_the_codec_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny = measure_codec(no_peers, mebibytes=SMALL, rounds=1, widths=(4,), thread_counts=(1,))
    tiny.skipped.append(Skipped("a peer", "not installed"))
    monkeypatch.setattr(bench_codec, "measure_codec", lambda *_, **__: tiny)
    path = tmp_path / "bench.json"
    result = CliRunner().invoke(app, ["bench", "--only", "codec", "--quick", "--json", str(path)])
    assert result.exit_code == 0, result.output
    assert "not measured: a peer (not installed)" in result.output
    report = json.loads(path.read_text())
    assert report["machine"]["cpu"]
    assert report["versions"]["torch"] == torch.__version__
    assert [f["coder"] for f in report["codec"]["figures"]] == ["nearest", "stochastic", "hook, nearest"]


def test_a_bucket_is_begun_before_the_one_before_it_ends() -> None:
    def rank_main(rank: int) -> list[str]:
        log: list[str] = []

        class Logged(Quantized):
            def start_average_(self, work: BucketWork, step: Step) -> Pending[None]:
                log.append("begin")
                return super().start_average_(work, step).then(lambda _: log.append("end"))

        works = [gradient_work(SMALL, bucket_size=512) for _ in range(3)]
        average(
            Logged(error_feedback=False), ProcessGroupTransport(dist.group.WORLD), works, bits=4, iteration=0
        )
        return log

    assert run_ranks(rank_main) == [["begin", "begin", "end", "begin", "end", "end"]] * 2


def test_transport_and_steps_on_two_ranks() -> None:
    settings = TransportSettings(
        workload="digits-mlp",
        workload_settings={"width": 8},
        mebibytes=SMALL,
        rounds=1,
        iterations=2,
        widths=(4, 32),
    )
    report, other = run_ranks(lambda rank: measure_on_rank(settings, "loopback"))
    assert report == other
    assert [c.bits for c in report.collectives] == [4, 32]
    four, plain = report.collectives
    # codes, scales and a checksum: two ranks gather
    assert four.wire_bytes == 4096 * 4 / 8 + 4096 / 512 * 4 + CHECKSUM_BYTES
    assert plain.wire_bytes == 4 * 4096
    assert four.seconds > 0
    assert four.encode_seconds > 0
    assert four.decode_seconds > 0
    assert [s.bits for s in report.steps] == [None, 4, 32]
    assert (report.steps[0].per_plain, report.steps[0].extra_seconds) == (1.0, 0.0)
    assert all(s.per_plain_range[0] <= s.per_plain <= s.per_plain_range[1] for s in report.steps)
    assert report.steps[2].wire_bytes >= report.gradient_bytes == 4 * report.parameters
    assert [rate.bits for rate in report.break_even()] == [4]


def test_long_rounds_are_fewer_and_all_ranks_stop_together() -> None:
    def rank_main(rank: int) -> list[list[Variant]]:
        done: list[list[Variant]] = []
        for turns in rounds_within(0.35, "sleep", (None, 4), most=20):
            done.append(list(turns))
            time.sleep(0.1 if rank == 0 else 0.0)  # rank 0's clock decides
        return done

    first, second = run_ranks(rank_main)
    assert first == second
    assert all(turns == [None, 4] for turns in first)
    assert 1 + LEAST_ROUNDS <= len(first) <= 4


@pytest.mark.parametrize(
    ("iteration_seconds", "expected"),
    [
        (0.001, 10),  # as many as are asked for
        (1.0, 3),  # 3 rounds of 4 turns of 5 iterations, of which the first 2 do not count
        (100.0, 1),
    ],
)
def test_long_iterations_are_fewer(iteration_seconds: float, expected: int) -> None:
    def rank_main(rank: int) -> int:
        seconds = iteration_seconds if rank == 0 else 50.0
        return iterations_within(60.0, iteration_seconds=seconds, turns=4, uncounted=2, most=10)

    assert run_ranks(rank_main) == [expected] * 2


def test_32_bits_are_measured_in_any_case_as_the_links_rate_is_theirs() -> None:
    assert TransportSettings(widths=(4, 1 / 4)).widths == (1 / 4, 4, 32)


def test_what_plain_ddp_sends_is_in_the_gradients_own_type() -> None:
    settings = TransportSettings(workload="doubles:Doubles", mebibytes=SMALL, rounds=1, iterations=1)
    (report,) = run_ranks(lambda rank: measure_on_rank(settings, "loopback"), world_size=1)
    assert report.gradient_bytes == 8 * report.parameters


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--only", "disk"], "disk"),
        (["--json", "no-such-folder/bench.json"], "no-such-folder"),
        (["--json", "."], "is a folder"),
        (["--num-workers", "1"], "num-workers"),
        (["--widths", "4+many"], "many"),
    ],
)
def test_a_mistake_is_named_before_anything_is_measured(arguments: list[str], expected: str) -> None:
    result = CliRunner().invoke(app, ["bench", *arguments])
    assert result.exit_code == 2
    assert expected in result.output


def test_half_an_environment_of_torchrun_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "left-over")
    monkeypatch.delenv("RANK", raising=False)
    result = CliRunner().invoke(app, ["bench", "--only", "codec"])
    assert isinstance(result.exception, RuntimeError)
    assert "not a torchrun job: RANK" in str(result.exception)


def test_a_rank_that_fails_is_named_with_what_it_said() -> None:
    """One that only a rank finds: with more ranks there are fewer examples for each."""
    settings = TransportSettings(
        workload="digits-mlp", workload_settings={"batch_size": 1000}, mebibytes=SMALL, rounds=1
    )
    with pytest.raises(WorkerError) as failed:
        measure_locally(settings, num_workers=2)
    assert error_line(failed.value).startswith(
        f"rank {failed.value.rank}: batch_size 1000 on 2 ranks needs 2000"
    )


@pytest.mark.parametrize(("option", "value"), [("--widths", "9"), ("--seconds", "0"), ("--seconds", "nan")])
def test_a_setting_out_of_range_is_named_before_anything_is_measured(option: str, value: str) -> None:
    result = CliRunner().invoke(app, ["bench", option, value])
    assert isinstance(result.exception, ValueError)
    assert value in str(result.exception)


def test_an_unknown_workload_is_named_before_anything_is_measured() -> None:
    result = CliRunner().invoke(app, ["bench", "--workload", "digits-rnn"])
    assert isinstance(result.exception, ValueError)
    assert "digits-rnn" in str(result.exception)
