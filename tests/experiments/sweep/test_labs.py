"""Sweeps in labs that the kernel refuses to build, to use or to take down."""

import collections
import time
from pathlib import Path
from typing import ClassVar

import pytest
from comparison import small_config
from fake_server import run_fake

from mqgrad.experiments.netlab.iproute import NetLabError
from mqgrad.experiments.netlab.link import LinkRates
from mqgrad.experiments.sweep import runner as sweep_runner
from mqgrad.experiments.sweep.folder import load_results
from mqgrad.experiments.sweep.result import Ending
from mqgrad.experiments.sweep.run_server import RunRequest
from mqgrad.experiments.sweep.server import LocalServer


class FakeLab(LocalServer):
    """Stands in for a lab, of which the kernel refuses some steps, told by name and number."""

    refused: ClassVar[frozenset[tuple[str, int]]] = frozenset()
    steps: ClassVar[collections.Counter[str]] = collections.Counter()

    def __init__(self, command: list[str], rates: LinkRates, hosts: int, logs: Path, name: str) -> None:
        self.step("build")
        self.record: Path | None = None  # of a run whose training has not begun
        super().__init__(command, logs)

    def step(self, name: str) -> None:
        self.steps[name] += 1
        if (name, self.steps[name]) in self.refused:
            raise NetLabError(f"refused to\n{name}")

    def request(self, run: RunRequest) -> None:
        self.step("request")
        self.record = Path(run.record)
        super().request(run)

    def ending(self) -> Ending | None:
        if self.record is not None:
            while super().ending() is None and not self.record.exists():
                time.sleep(0.002)  # else a run may be over before the rate has been looked at
            self.record = None
            self.step("rate")
        return super().ending()

    def close(self, *, at_once: bool) -> None:
        super().close(at_once=at_once)
        self.step("close")


@pytest.fixture
def stale(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Links in the kernel are stubs; fills with the names of labs that are looked for at the end."""
    names: list[str] = []
    monkeypatch.setattr(sweep_runner, "LabServer", FakeLab)
    monkeypatch.setattr(sweep_runner, "remove_stale_lab", names.append)
    monkeypatch.setattr(FakeLab, "steps", collections.Counter())
    return names


@pytest.mark.parametrize(
    ("refused", "retried", "crashed"),
    [
        ({("request", 2)}, 1, None),  # by processes that had carried out a run
        ({("rate", 2)}, None, 1),
        ({("rate", 2), ("close", 1)}, None, 1),
        ({("close", 1)}, 2, None),
        ({("build", 2)}, 2, None),
        ({("build", 2), ("build", 3)}, 2, 2),
    ],
)
def test_what_the_kernel_refuses_a_lab_is_in_the_row_and_the_sweep_goes_on(
    refused: set[tuple[str, int]],
    retried: int | None,
    crashed: int | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    stale: list[str],
) -> None:
    monkeypatch.setattr(FakeLab, "refused", frozenset(refused))
    rows = run_fake(tmp_path, small_config(links=("100mbit", "1gbit"), seeds=(1,)))
    assert [row.outcome for row in rows] == ["crashed" if n == crashed else "finished" for n in range(4)]
    for number, row in enumerate(rows):
        assert row.retried.startswith("the lab failed: refused to ") == (number == retried)
        assert row.reason.startswith("the lab failed: refused to ") == (number == crashed)
    assert len(stale) == 1


def test_what_a_run_sent_that_was_over_at_the_first_look_is_not_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stale: list[str]
) -> None:
    monkeypatch.setattr(FakeLab, "sent_bytes", lambda lab: [10**6, 10**6])
    (row,) = run_fake(tmp_path, small_config(systems=("fixed:32",), links=("100mbit",), seeds=(1,)))
    assert (row.outcome, row.interface_bytes) == ("finished", [])


def test_when_no_lab_can_be_built_any_more_the_sweep_stops_and_can_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stale: list[str]
) -> None:
    monkeypatch.setattr(FakeLab, "refused", frozenset(("build", number) for number in range(2, 9)))
    with pytest.raises(NetLabError, match="refused to"):
        run_fake(tmp_path, small_config(links=("100mbit", "1gbit"), seeds=(1,)))
    outcomes = [row.outcome for row in load_results(tmp_path / "out")]
    assert outcomes == ["finished", "finished", "crashed"]


def test_where_no_lab_can_be_built_nothing_is_a_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stale: list[str]
) -> None:
    monkeypatch.setattr(FakeLab, "refused", frozenset({("build", 1)}))
    with pytest.raises(NetLabError, match="refused to"):
        run_fake(tmp_path, small_config(links=("100mbit",)))
    assert load_results(tmp_path / "out") == []
