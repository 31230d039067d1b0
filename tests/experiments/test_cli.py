"""The command line as a user meets it: real processes, exit codes, and what is printed."""

import contextlib
import io
import json
import os
import runpy
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch.distributed as dist
from ranks import run_ranks

import mqgrad
from mqgrad.experiments.cli import format_warning
from mqgrad.experiments.runs import RunRecord
from mqgrad.trainers.clusters.errors import WorkerError

MQGRAD = str(Path(sys.executable).with_name("mqgrad"))
Invoke = Callable[..., tuple[int, str, str]]
EXAMPLE = Path(__file__).parents[2] / "experiments" / "examples" / "ddp_digits.py"


def command(*arguments: str, timeout: float = 100.0) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "COLUMNS": "120"}
    return subprocess.run([*arguments], capture_output=True, text=True, timeout=timeout, env=environment)


def test_the_command_names_its_subcommands(invoke: Invoke) -> None:
    overview = invoke("--help")[1]
    for name in ("train", "export", "run", "compare", "bench", "demo", "netlab"):
        assert name in overview


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["run", "--workload", "digits-rnn"], "digits-cnn, digits-mlp"),
        (["run", "--workload", "cifar10-cnn"], "data_batch_1.bin"),
        (["run", "--workload", "cifar10-cnn", "--data-root", "/nowhere"], "has no file"),
        (["bench", "--workload", "cifar10-cnn", "--data-root", "/nowhere"], "has no file"),
        (
            ["run", "--workload", "./mine:Mine"],
            "'./mine' is a path; give the name of the module, as 'mine:Mine'",
        ),
        (["run", "--controller", ""], "unknown controller ''"),
        (["run", "--compressor", ""], "unknown compressor ''"),
        (["train", ""], "it is empty; give the name of a folder"),
        (["compare", "--output", ""], "it is empty; give the name of a folder"),
        (["demo", "--output", ""], "it is empty; give the name of a folder"),
        (["run", "--tensorboard", ""], "it is empty; give the name of a folder"),
        (["netlab", "--logs", "", "true"], "it is empty; give the name of a folder"),
        (["compare", "--output", "new", "--controllers", ""], "it is empty; give a name"),
        (["run", "--controller", "magic"], "known: "),
        (["run", "--controller", "magic"], "mqgrad-authors, oracle"),
        (["run", "--controller", "fixed:9"], "bit width 9"),
        (["run", "--controller", "oracle:widths=2+9"], "'oracle:widths=2+9'"),
        (["run", "--controller", "oracle:width=2"], "known: widths"),
        (["run", "--controller", "oracle", "--method", "local-sgd"], "no width for the oracle"),
        (["run", "--controller", "missing.mqg"], "missing.mqg"),
        (["run", "--set", "batch_size=0"], "batch_size"),
        (["run", "--workload", "bytes-gpt", "--set", "data_root=2024"], "give it as 'data_root=\"2024\"'"),
        (
            ["run", "--workload", "bytes-gpt", "--set", "file_pattern=1"],
            "file_pattern must be a string, not 1",
        ),
        (
            ["run", "--workload", "cifar10-cnn", "--set", "data_root=[1]"],
            "data_root must be a string, not [1]",
        ),
        (["run", "--workload", "logreg", "--set", "data_path=7"], "data_path must be a string, not 7"),
        (["run", "--budget-seconds", "0"], "budget_seconds"),
        (["run", "--link-latency-ms", "5"], "give its rate too"),
        (["train", "run", "--link-latency-ms", "5"], "rate too, with --link-mbit-per-s"),
        (
            ["train", "run", "--preset", "authors", "--algo", "ppo"],
            "authors sets --algo sarsa, and --algo asks",
        ),
        (["train", "run", "--simulated-compute-ms", "5"], "give the rate too, --link-mbit-per-s"),
        (["train", "run", "--simulated-compute-ms=-1", "--link-mbit-per-s", "9"], "compute_seconds"),
        (["train", "run", "--preset", "authors", "--warm-start", "goodput"], "sets --warm-start auto"),
        (["run", "--method", "local-sgd", "--compressor", "qsgd"], "--compressor qsgd would change nothing"),
        (["run", "--seed", "-1"], "--seed"),
        (["run", "--workload", "json:loads"], "missing a required argument"),
        (["run", "--workload", "nomodule:Mine"], "in the current folder or on PYTHONPATH"),
        (
            ["train", "run", "--total-seconds", "nan"],
            "total_seconds must be a finite number above 0, not nan",
        ),
        (["run", "--set", "batch_size"], "NAME=VALUE"),
        (["run", "--link-mbit-per-s", "fast"], "Mbit/s"),
        (["run", "--link-mbit-per-s", "1:2"], "100/1000@10"),
        (["train", "/proc/here", "--total-steps", "1"], "/proc/here"),
        (["train", "nowhere", "--resume"], "no run to resume"),
        (["train", "run", "--widths", "2+few"], "'2+few': 'few' is not a number"),
        (["train", "run", "--widths", "4+1/4"], "increasing"),
        (["export", "nowhere.zip", "p.mqg"], "nowhere.zip"),
        (["train", "run", "--budget-seconds", "inf"], "budget_seconds=inf cannot be saved"),
        (["export", "nowhere.zip", "p.bin"], "is to end in .mqg"),
        (["export", "nowhere.zip", "no-folder/p.mqg"], "there is no folder"),
    ],
)
def test_a_mistake_ends_in_one_message_and_exit_code_2(
    arguments: list[str], expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, invoke: Invoke
) -> None:
    monkeypatch.chdir(tmp_path)
    code, _, error = invoke(*arguments)
    assert code == 2
    assert expected in error


def test_a_timeout_reaches_the_workers_and_its_error_names_the_option(invoke: Invoke) -> None:
    small = ["--workload", "digits-mlp", "--set", "width=8", "--iterations", "5"]
    code, _, error = invoke("run", *small, "--timeout-seconds", "0.001")
    assert code == 2
    assert "made no progress for 0.001 s" in error
    assert ": if it only takes longer" in error
    assert "--timeout-seconds" in error


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (
            WorkerError(1, "raised", "Traceback\nValueError: batch_size 9 is too large", "restart()"),
            "rank 1: batch_size 9",
        ),
        (WorkerError(1, "raised", "Traceback\nTypeError: a bug", "restart()"), "TypeError: a bug"),
        (RuntimeError("port in use"), "port in use (MQGRAD_TRACEBACK=1 shows where)"),
        (ModuleNotFoundError("pip install it"), "pip install it"),
    ],
)
def test_an_error_is_a_sentence_and_no_traceback_of_ours(
    error: Exception, line: str, invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise error

    monkeypatch.setattr("mqgrad.experiments.cli.app", fail)
    code, _, told = invoke()
    assert code == 2
    assert line in told


def test_a_workload_of_ones_own_is_found_in_the_current_folder(
    invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(EXAMPLE.parent)
    own = ["--workload", "own_workload:Spirals", "--set", "width=8"]
    code, output, error = invoke("run", *own, "--controller", "fixed:4", "--iterations", "10")
    assert (code, error) == (0, "")
    assert "own_workload:Spirals, 2 workers" in output


def test_a_data_root_reaches_the_workers(tmp_path: Path, invoke: Invoke) -> None:
    for name in ("train.csv", "test.csv"):
        (tmp_path / name).write_text('"1","a title","words"\n"4","another","text"\n' * 20)
    arguments = ["--workload", "agnews-bilstm", "--set", "width=8", "--set", "batch_size=4"]
    code, output, _ = invoke("run", *arguments, "--data-root", str(tmp_path), "--iterations", "3")
    assert code == 0
    assert "finished" in output


def test_the_oracle_runs_every_fixed_width_and_reports_the_best(tmp_path: Path, invoke: Invoke) -> None:
    record, logs = tmp_path / "record.json", tmp_path / "logs"
    workload = ["--workload", "digits-mlp", "--set", "width=32", "--iterations", "20", "--seed", "3"]
    oracle = ["--controller", "oracle:widths=1+8+32", "--record", str(record), "--tensorboard", str(logs)]
    code, output, _ = invoke("run", *workload, *oracle)
    assert code == 0
    found = RunRecord.from_dict(json.loads(record.read_text()))
    losses = {run.controller: run.final.heldout["loss"] for run in found.trials}
    assert list(losses) == ["fixed:1", "fixed:8", "fixed:32"]
    assert len(set(losses.values())) == 3
    best = min(losses, key=lambda name: losses[name])
    assert found.controller == f"oracle: {best} in hindsight"
    assert found.controller in output
    assert found.points == next(run for run in found.trials if run.controller == best).points
    assert [len(run.points) for run in found.trials] == [len(found.points)] * 3
    assert f"seconds of all trials │ {found.trial_seconds:.2f}" in output
    assert found.trial_seconds > found.final.elapsed_seconds
    assert sorted(path.name for path in logs.iterdir()) == ["fixed:1", "fixed:32", "fixed:8"]


@pytest.mark.timeout(240)
def test_learn_freeze_and_deploy(tmp_path: Path, invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    """The three uses, each as small as it can be and each real."""
    monkeypatch.setattr("mqgrad.agents.warm_start.STEPS", 50)
    folder, policy, record = str(tmp_path / "run"), str(tmp_path / "p[x].mqg"), tmp_path / "record.json"
    workload = ["--workload", "digits-mlp", "--set", "width=64", "--link-mbit-per-s", "20"]
    short = [*workload, "--algo", "dqn", "--budget-seconds", "0.5", "--widths", "1/4+2+4+8+32"]
    assert invoke("train", folder, *short, "--total-steps", "12")[0] == 0
    assert invoke("train", folder, "--resume", "--total-steps", "16")[0] == 0
    assert f"DQN after 16 decisions, from {folder}/model.zip" in invoke("export", folder, policy)[1]
    (tmp_path / "run" / "model.zip").unlink()
    assert f"from {folder}/checkpoints/step_00000016/model.zip" in invoke("export", folder, policy)[1]

    logs = tmp_path / "logs"
    look = ["--tensorboard", str(logs), "--record", str(record)]
    code, output, _ = invoke("run", *workload, "--controller", policy, "--iterations", "30", *look)
    assert code == 0
    assert "(emulated)" in output
    row = next(line for line in output.splitlines() if line.startswith("│ controller"))
    assert policy in row
    recorded = json.loads(record.read_text())
    assert (recorded["link"], bool(recorded["origin"]["revision"])) == ("20 Mbit/s (emulated)", True)
    points = recorded["points"]
    assert [p["iteration"] for p in points] == list(range(2, 31, 2))
    assert mqgrad.load_policy(policy).schema.widths == (1 / 4, 2, 4, 8, 32)
    assert {p["bits"] for p in points} <= {1 / 4, 2, 4, 8, 32}
    assert any(logs.iterdir())

    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone"]
    deployed = command(*torchrun, str(EXAMPLE), policy)
    assert deployed.returncode == 0, deployed.stderr
    for printed in (deployed.stdout, run_ranks(lambda rank: deployed_in_rounds(policy))[0]):
        losses = [float(line.split()[3]) for line in printed.splitlines()]
        assert len(losses) == 10
        assert losses[-1] < losses[0]


def deployed_in_rounds(policy: str) -> str:
    """What the example prints on a rank that is there already, which takes less time than torchrun."""
    dist.init_process_group = lambda _: None
    sys.argv = [str(EXAMPLE), policy, "8"]
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        runpy.run_path(str(EXAMPLE), run_name="__main__")
    return printed.getvalue()


def test_train_prints_paths_as_they_are_and_tells_how_to_go_on_once_stopped(
    tmp_path: Path, invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    def train_with(outcome: object) -> tuple[int, str, str]:
        monkeypatch.setattr("mqgrad.experiments.training.train_policy", outcome)
        return invoke("train", str(run), "--total-steps", "1")

    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    run = tmp_path / ("a [x]" * 40)
    quoted = shlex.quote(str(run))
    output = train_with(lambda config, resume: config.output / "model.zip")[1]
    assert f"model: {run}/model.zip\nnext:  mqgrad export {quoted} policy.mqg\n" in output
    assert f"--logdir {shlex.quote(f'{run}/tensorboard')}\n" in output
    code, _, error = train_with(interrupt)
    assert (code, error) == (130, "stopped before there was anything to save\n")
    (run / "checkpoints" / "step_00000040").mkdir(parents=True)
    assert train_with(interrupt)[2] == f"stopped; to go on: mqgrad train {quoted} --resume\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--controller", "[/x]"), "[/x]"),
        (("--controller", "fixed:4", "--compressor", "zip[1]"), "zip[1]"),
        (("--controller", "goodput", "--compressor", "minmax"), "Goodput chooses among"),
        (("--controller", "fixed:4", "--compressor", "top-k"), "FixedBits chooses among 4 bits"),
        (("--controller", "goodput", "--method", "local-sgd"), "has no width for a controller"),
        (("--method", "backup-workers", "--num-workers", "1"), "of 1 ranks"),
    ],
)
def test_errors_are_shown_as_they_are_before_workers_start(
    invoke: Invoke, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], message: str
) -> None:
    monkeypatch.setattr("mqgrad.experiments.ranks.open_cluster", lambda *_: pytest.fail("workers started"))
    code, _, error = invoke("run", *arguments)
    assert code == 2
    assert message in error


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_stops_a_run_its_workers_and_leaves_no_files(number: int, code: int, tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    of_torch = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "torch")}  # a folder that it leaves
    drawn = {"FORCE_COLOR": "1", "TERM": "xterm"}  # the progress bar, into a pipe
    process = subprocess.Popen(
        [MQGRAD, "run", "--workload", "digits-mlp", "--iterations", "100000"],
        env={**os.environ, "TMPDIR": str(scratch), **of_torch, **drawn},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        read_until(process, b"loss")  # of the first point
        (fork_server,) = children(process.pid)
        workers = children(fork_server)
        assert len(workers) == 2
        assert list(scratch.iterdir())
        process.send_signal(number)
        assert process.wait(30) == code
        assert not any(Path(f"/proc/{pid}").exists() for pid in workers)
        assert not list(scratch.iterdir())
    finally:
        process.kill()
        process.communicate()


def read_until(process: "subprocess.Popen[bytes]", words: bytes) -> None:
    assert process.stdout is not None
    printed = b""
    while words not in printed:
        more = os.read(process.stdout.fileno(), 4096)
        assert more, "it ended"
        printed += more


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_a_warning_is_one_line_unless_its_place_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    of = ("a.py", 7)
    monkeypatch.delenv("MQGRAD_TRACEBACK", raising=False)
    assert format_warning("nothing is left", RuntimeWarning, *of) == "warning: nothing is left\n"
    assert format_warning("old", DeprecationWarning, *of).startswith("a.py:7: DeprecationWarning: old\n")
    monkeypatch.setenv("MQGRAD_TRACEBACK", "1")
    assert format_warning("nothing is left", RuntimeWarning, *of).startswith(
        "a.py:7: RuntimeWarning: nothing"
    )
