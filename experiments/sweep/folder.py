"""Filling the grid of a comparison, one run at a time, into a folder from which it can go on."""

import contextlib
import dataclasses
import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from mqgrad.files import replace_file
from mqgrad.run_folder import check_writable, only_process_in
from mqgrad.trainers.signals import caught_signals, stopped_by

from ..netlab.link import SHAPING
from ..netlab.tcp import DEFAULT_CONGESTION_CONTROL
from ..provenance import provenance
from .axes import Link, Run
from .config import SweepConfig
from .result import FAILED, RunResult
from .runner import Place, SweepRunner, default_program

_SAME_ORIGIN = {
    "machine": ("cpu", "cpu_family", "cpu_model", "cores"),
    "versions": ("python", "torch", "numpy", "codec"),
}  # what times and losses depend on; bytes-* learn the text of Python's library

_LAB = {"tcp": DEFAULT_CONGESTION_CONTROL, "links": SHAPING}
_WRITTEN = ("results.jsonl", "report.md", "report.html", "logs")
"""What lies in a folder beside ``config.json``: without that it is somebody else's, and would be lost."""


class Sweep:
    """A folder with ``config.json`` and ``results.jsonl``, one line per run; :func:`open_sweep` makes it."""

    def __init__(self, folder: Path, config: SweepConfig, program: Sequence[str]) -> None:
        self.folder = folder
        self.config = config
        self._program = program
        self._digests = config.digests()

    def pending(self, *, retry_failed: bool = False) -> list[Run]:
        """Runs that have no result yet; on request, also those that crashed or timed out."""
        done = {
            result.run
            for result in load_results(self.folder)
            if not (retry_failed and result.outcome in FAILED)
        }
        return [run for run in self.config.runs() if run not in done]

    def run(
        self,
        *,
        retry_failed: bool = False,
        on_start: Callable[[Run], None] = lambda run: None,
        on_result: Callable[[RunResult], None] = lambda result: None,
    ) -> None:
        """Carry out what is pending, one run after another. A run that fails is a result like any other.

        Raises:
            KeyboardInterrupt: SIGINT; no process is left, and every finished run is on disk.
            SystemExit: SIGTERM or SIGHUP, likewise; with 128 and the signal's number.
            NetLabError: no lab can be built here, or the last one cannot be removed.
            ValueError: the folder's runs in labs had another congestion control than those that are pending, or links
                of another shape; or a policy file or a workload's module has changed while runs were carried out.
        """
        pending = self.pending(retry_failed=retry_failed)
        if any(not Link.parse(run.link).emulated for run in pending):
            check_same_labs(self.folder)
        with caught_signals() as caught:
            place = Place(self.folder / "logs", _lab_name(self.folder), self._program, caught)
            earlier = {result.run: result for result in load_results(self.folder)}
            with SweepRunner(self.config, place) as runner:
                for run in pending:
                    if caught:
                        raise stopped_by(caught[0])
                    on_start(run)
                    result = runner.carry_out(run)
                    self._check_files()
                    if run in earlier:
                        result = dataclasses.replace(result, retried=earlier[run].first_reason)
                    _append(self.folder / "results.jsonl", result)
                    on_result(result)

    def _check_files(self) -> None:
        try:
            told = _differences(self._digests, now := self.config.digests(), now)
        except OSError as error:
            told = str(error)
        if told:
            raise ValueError(
                f"a file has changed while {self.folder} was filled, so that its runs could not be compared with one "
                f"another ({told}): put it back, or give another --output"
            )


@contextlib.contextmanager
def open_sweep(folder: Path, config: SweepConfig, *, program: Sequence[str] | None = None) -> Iterator[Sweep]:
    """A sweep in a folder that is this process's alone until the block ends.

    Args:
        folder: a new one, or one of an earlier sweep with the same configuration, apart from the time limit, on a
            machine and with versions like these, which is then continued.
        config: what is compared.
        program: the command that carries out runs, up to its options; ``mqgrad serve-runs`` by default.

    Raises:
        ValueError: an unknown name, another process is at work in the folder, or it belongs to another configuration,
            policy, workload module, machine, version of Python, torch or numpy, or implementation of the codec, or
            to one that is not known any more.
    """
    config.check_names()
    given = {"sweep": config.to_dict(), **config.digests()}
    come_from = origin(config)
    check_writable(folder)
    with only_process_in(folder):
        if (folder / "config.json").exists():
            saved = _load_json(folder)
            check_same_config(saved, given, folder)
            check_same_origin(saved, come_from, folder)
            saved["sweep"]["time_limit_seconds"] = config.time_limit_seconds  # of the runs to come
        elif others := [name for name in _WRITTEN if (folder / name).exists()]:
            raise ValueError(
                f"{folder} holds {', '.join(others)} and no config.json that tells of what; give another --output"
            )
        else:
            saved = {**given, **come_from}
        replace_file(folder / "config.json", json.dumps(saved, indent=1) + "\n")
        yield Sweep(folder, config, default_program() if program is None else program)


def origin(config: SweepConfig) -> dict[str, Any]:
    """Where a sweep's figures come from: versions, machine, revision, and what its labs are, if it has any."""
    emulated = {Link.parse(link).emulated for link in config.links}
    lab = {"lab": _LAB} if False in emulated else {}
    return {**provenance(of_labs=True not in emulated), **lab}


def check_same_labs(folder: Path) -> None:
    """Raises ValueError if a folder's runs in labs had other links, or another congestion control, than labs now."""
    saved = _load_json(folder)
    # Older folders tell of no lab: its hosts had the machine's congestion control.
    machine = saved.get("machine", {})
    lab = saved.get("lab", {"tcp": machine.get("tcp")})
    told = _differences({"lab": lab}, {"lab": _LAB}, {"lab": _LAB})
    if told:
        raise ValueError(
            f"{folder} holds runs in labs that could not be compared with those of now ({told}); give another "
            "--output"
        )


def check_same_config(saved: dict[str, Any], given: dict[str, Any], folder: Path) -> None:
    """Raises ValueError, naming the differences, if a folder's sweep is not the one that is asked for. The time limit
    of a run changes no figure and may differ: what has timed out can be given more."""
    names = {part: [name for name in given[part] if name != "time_limit_seconds"] for part in given}
    told = _differences(saved, given, names)
    if told:
        raise ValueError(f"{folder} holds a sweep with another configuration ({told}); give another --output")


def check_same_origin(saved: dict[str, Any], here: dict[str, Any], folder: Path) -> None:
    """Raises ValueError, naming the differences, if a folder's times are of another machine or of other versions."""
    told = _differences(saved, here, _SAME_ORIGIN)
    if told:
        raise ValueError(
            f"{folder} holds runs that could not be compared with those of this machine and its versions ({told}); "
            "continue it where it was begun, or give another --output"
        )


def _differences(saved: dict[str, Any], given: dict[str, Any], names: Mapping[str, Iterable[str]]) -> str:
    return "; ".join(
        f"{name}: {there} there, {here} here"
        for part in names
        for name in names[part]
        if (there := saved.get(part, {}).get(name)) != (here := given[part].get(name))
    )


def load_config(folder: Path) -> SweepConfig:
    """The configuration of a sweep's folder; policy files need not exist any more.

    Raises:
        ValueError: it is none, or of another version.
    """
    try:
        return SweepConfig.from_dict(_load_json(folder)["sweep"])
    except (KeyError, TypeError) as error:
        raise ValueError(f"{folder / 'config.json'} is no configuration of a sweep: {error}") from error


def load_provenance(folder: Path) -> dict[str, Any]:
    """Versions, machine, revision and labs with which a sweep was begun."""
    return {name: value for name, value in _load_json(folder).items() if name != "sweep"}


def load_results(folder: Path) -> list[RunResult]:
    """The results of a sweep, the latest of each run; a line cut short by a crash of the machine is left out.

    Raises:
        ValueError: a line other than the last is damaged.
    """
    path = folder / "results.jsonl"
    if not path.exists():
        return []
    lines = path.read_text().split("\n")
    results: dict[Run, RunResult] = {}
    for number, line in enumerate(lines[:-1], start=1):  # the last is empty, or was not written to its end
        try:
            result = RunResult(**json.loads(line))
        except (ValueError, TypeError) as error:
            raise ValueError(f"{path}, line {number} is no result: {error}") from error
        results[result.run] = result
    return list(results.values())


def _load_json(folder: Path) -> dict[str, Any]:
    path = folder / "config.json"
    try:
        fields: dict[str, Any] = json.loads(path.read_text())
    except json.JSONDecodeError as error:
        raise ValueError(f"{path} is no configuration of a sweep: {error}") from error
    if not isinstance(fields, dict) or not isinstance(fields.get("sweep", {}), dict):
        raise ValueError(f"{path} is no configuration of a sweep: {fields!r}")
    return fields


def _append(path: Path, result: RunResult) -> None:
    line = json.dumps(dataclasses.asdict(result), allow_nan=False, separators=(",", ":"))
    complete = path.read_bytes() if path.exists() else b""
    if complete and not complete.endswith(b"\n"):  # cut short earlier: that run has been run again
        replace_file(path, complete[: complete.rfind(b"\n") + 1].decode())
    with path.open("a") as file:
        file.write(line + "\n")
        file.flush()
        os.fsync(file.fileno())


def _lab_name(folder: Path) -> str:
    """The same for the same folder, so that a resumed sweep finds the lab that a killed one left behind."""
    return "compare-" + hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:12]
