"""Commands on shaped hosts: how they end, and that nothing of them stays."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from labs import needs_lab, python
from typer.testing import CliRunner

from mqgrad.experiments.cli import app
from mqgrad.experiments.netlab import iproute
from mqgrad.experiments.netlab import job as netlab_job
from mqgrad.experiments.netlab.lab import NetLab, clean_lab, list_labs
from mqgrad.experiments.netlab.run import run_on_new_lab
from mqgrad.run_folder import only_process_in


def wait_until(condition: Callable[[], object], seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.05)


def running(marker: str) -> list[str]:
    """Command lines of living processes that contain the marker, other than this one."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if marker in line and path.parent.name != str(os.getpid()):
            found.append(line)
    return found


@needs_lab
def test_a_failing_host_stops_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(netlab_job, "_GRACE_SECONDS", 0.5)
    stubborn = f"mqgrad-test-{os.getpid()}"
    code = """
import os, signal, subprocess, sys, time
if os.environ["RANK"] == "1":
    time.sleep(0.5)
    sys.exit("the data of this host is broken")
signal.signal(signal.SIGTERM, signal.SIG_IGN)
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)", *sys.argv[1:]], start_new_session=True)
time.sleep(300)
"""
    started = time.monotonic()
    lab = NetLab(3)
    result = run_on_new_lab(lab, python(code, stubborn), tmp_path)
    assert time.monotonic() - started < 10
    assert result.outcome == "failed: rank 1 (exit status 1)"
    assert result.status == 1
    assert [host.ending for host in result.hosts] == ["stopped", "failed", "stopped"]
    assert [host.returncode for host in result.hosts] == [-signal.SIGKILL, 1, -signal.SIGKILL]
    assert "data of this host is broken" in netlab_job.log_tail(tmp_path, 1)
    assert lab.name not in list_labs()
    assert not running(stubborn)


@needs_lab
@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        *(
            (["--time-limit-seconds", limit, "true"], "time_limit_seconds must be a finite number above 0")
            for limit in ("nan", "0")
        ),
        (["mqgrad-nonsense"], "no program 'mqgrad-nonsense'"),
    ],
)
def test_a_mistake_is_told_before_there_is_a_lab_or_a_folder(
    arguments: list[str], told: str, tmp_path: Path
) -> None:
    name, logs = f"mistaken-{os.getpid()}", tmp_path / "logs"
    command = ["netlab", "--name", name, "--logs", str(logs), *arguments]
    with pytest.raises(ValueError, match=told):
        CliRunner().invoke(app, command, catch_exceptions=False)
    assert name not in list_labs()
    assert not logs.exists()


@needs_lab
def test_logs_are_of_one_command_alone(tmp_path: Path) -> None:
    run_on_new_lab(NetLab(2), ["true"], tmp_path)
    with only_process_in(tmp_path), pytest.raises(ValueError, match=f"process {os.getpid()} is at work in"):
        run_on_new_lab(NetLab(1), ["true"], tmp_path)
    assert (tmp_path / "rank1.stdout.log").exists()
    run_on_new_lab(NetLab(1), ["true"], tmp_path)
    assert sorted(path.name for path in tmp_path.glob("[!.]*")) == [
        "netlab.json",
        "rank0.stderr.log",
        "rank0.stdout.log",
    ]


@needs_lab
def test_a_time_limit_and_a_signal_end_the_run(tmp_path: Path) -> None:
    result = run_on_new_lab(NetLab(2), ["sleep", "300"], tmp_path, time_limit_seconds=0.3)
    assert (result.status, result.hosts[0].ending) == (124, "stopped")
    assert "ranks [0, 1] still ran" in result.outcome

    lab = NetLab(2)

    def terminate() -> None:  # once the handlers are in place, or it would end the tests themselves
        wait_until(lambda: lab.name in list_labs())
        os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=terminate)
    thread.start()
    result = run_on_new_lab(lab, ["sleep", "300"], tmp_path, time_limit_seconds=20)
    thread.join(30)
    assert (result.outcome, result.status) == ("interrupted by SIGTERM", 143)
    assert lab.name not in list_labs()


def start_command(name: str, marker: str) -> "subprocess.Popen[bytes]":
    code = "import time; time.sleep(300)"
    command = [str(Path(sys.executable).parent / "mqgrad"), "netlab", "--name", name, "--"]
    process = subprocess.Popen([*command, *python(code, marker)])
    wait_until(lambda: len(running(marker)) == 3)  # the command and its two hosts
    return process


@needs_lab
def test_ctrl_c_leaves_nothing() -> None:
    name = marker = f"ctrl-c-{os.getpid()}"
    process = start_command(name, marker)
    process.send_signal(signal.SIGINT)
    assert process.wait(15) == 130
    assert name not in list_labs()
    assert not running(marker)


@needs_lab
def test_a_pager_that_nobody_reads_on_in_holds_up_neither_time_limit_nor_ctrl_c(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    code = "import time; print('x' * 1_000_000, flush=True); time.sleep(300)"
    options = ["--logs", str(logs), "--time-limit-seconds", "5"]
    command = [str(Path(sys.executable).parent / "mqgrad"), "netlab", *options, "--", *python(code)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        wait_until((logs / "netlab.json").exists)  # nothing is read yet
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=15)[0].count(b"x") == 1_000_000
        assert process.returncode == 124


@needs_lab
def test_a_stale_lab_is_cleaned_by_name() -> None:
    name = marker = f"stale-{os.getpid()}"
    process = start_command(name, marker)
    with pytest.raises(iproute.NetLabError, match="is running"):
        clean_lab(name)
    process.kill()
    process.wait(10)
    assert running(marker)
    with pytest.raises(iproute.NetLabError, match=f"--clean {name}"), NetLab(2, name=name):
        pass
    with NetLab(2) as other:
        result = CliRunner().invoke(app, ["netlab", "--clean", name])
        assert result.output == f"removed lab {name}\n"
        assert other.name in list_labs()
    assert name not in list_labs()
    assert not running(marker)
    with pytest.raises(ValueError, match=f"no lab '{name}'"):
        clean_lab(name)


@needs_lab
def test_a_torch_job_finds_its_ranks(tmp_path: Path) -> None:
    job = """
import os, torch, torch.distributed as dist
assert dist.is_torchelastic_launched() and os.environ["LOCAL_RANK"] == "0"
dist.init_process_group("gloo")
tensor = torch.full((100_000,), float(dist.get_rank() + 1))
dist.all_reduce(tensor)
print(tensor.unique().tolist(), torch.get_num_threads())
dist.destroy_process_group()
"""
    result = run_on_new_lab(NetLab(2), python(job), tmp_path, time_limit_seconds=60)
    assert result.outcome == "ok", netlab_job.log_tail(tmp_path, 1)
    for rank in range(2):
        assert (tmp_path / f"rank{rank}.stdout.log").read_text() == "[3.0] 1\n"
        assert result.hosts[rank].tx_bytes > 400_000
    assert (tmp_path / "netlab.json").exists()
