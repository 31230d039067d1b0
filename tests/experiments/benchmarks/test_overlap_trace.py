"""What the trace of an overlap is read as, on a trace made by hand: ranges in microseconds, four iterations."""

import gzip
import json
import runpy
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[3] / "experiments/benchmarks/overlap_trace.py"


def event(name: str, start: float, end: float) -> dict[str, object]:
    return {"ph": "X", "name": name, "ts": start, "dur": end - start}


TWO_BUCKETS = [
    event("backward", 0, 4000),
    event("autograd::engine::evaluate_function: Mm", 0, 1000),
    event("autograd::engine::evaluate_function: Mm", 1500, 2000),  # the last node: then backward waits
    event("mqgrad.begin", 500, 1600),
    event("mqgrad.encode", 500, 900),
    event("mqgrad.begin", 1700, 2400),
    event("mqgrad.encode", 1800, 2200),  # half of it within backward
    event("mqgrad.end", 2500, 3500),
    event("mqgrad.wire", 2500, 3200),
    event("mqgrad.decode", 3200, 3400),
    event("mqgrad.end", 3500, 4000),
    event("mqgrad.decode", 3600, 3800),
]


@pytest.mark.parametrize("name", ["trace.json", "trace.json.gz"])
def test_a_trace_tells_what_lies_within_backward_and_which_buckets_overlap(name, tmp_path, capsys) -> None:
    path = tmp_path / name
    text = json.dumps({"traceEvents": [{"ph": "M", "name": "process_name"}, *TWO_BUCKETS]})
    path.write_bytes(gzip.compress(text.encode()) if name.endswith("gz") else text.encode())
    runpy.run_path(str(SCRIPT))["report"](path)
    printed = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert printed == [
        "backward computes 0.5 ms per iteration",
        "mqgrad.encode 0.2 ms per iteration, 75% within backward",
        "mqgrad.wire 0.2 ms per iteration, 0% within backward",
        "mqgrad.decode 0.1 ms per iteration, 0% within backward",
        "together 0.5 ms per iteration, 32% within backward",
        "1 of 2 buckets end after the next has begun",
    ]
