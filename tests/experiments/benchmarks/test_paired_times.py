"""Ratios of any two systems of a comparison, seed by seed."""

import dataclasses
from pathlib import Path

import paired_times
import pytest
from comparison import result, small_config, write_results

LINKS = ("emulated:100mbit", "emulated:1gbit")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two cells; in the second ``fixed:2`` misses the target. fp32 takes 3 s, ``fixed:4`` 1 and 2, 2 and 2 s."""
    config = small_config(systems=("fixed:32", "fixed:4", "fixed:2"), links=LINKS)
    runs = [
        *(result("fixed:32", seed, [9.0, 9.0, *8 * [1.0]], link=link) for link in LINKS for seed in (1, 2)),
        result("fixed:4", 1, [1.0], link=LINKS[0]),
        result("fixed:4", 2, [1.0], step=2.0, link=LINKS[0]),
        *(result("fixed:4", seed, [1.0], step=2.0, link=LINKS[1]) for seed in (1, 2)),
        *(result("fixed:2", seed, [1.0], link=LINKS[0]) for seed in (1, 2)),
        *(result("fixed:2", seed, [9.0], step=4.0, link=LINKS[1]) for seed in (1, 2)),
    ]
    write_results(tmp_path, config, runs)
    return tmp_path


def test_the_mean_over_cells_is_taken_seed_by_seed(folder: Path) -> None:
    cells = paired_times.timings(folder)
    assert list(cells) == [f"digits-mlp @ {link}" for link in LINKS]
    first, second, overall = paired_times.row(cells, "fixed:4", "fixed:32")
    assert first is not None
    assert second is not None
    assert overall is not None
    assert first.value == pytest.approx((1 / 3 * 2 / 3) ** 0.5)
    assert second[:2] == (pytest.approx(2 / 3), "=")
    by_seed = (1 / 3 * 2 / 3) ** 0.5, 2 / 3
    assert overall.value == pytest.approx((by_seed[0] * by_seed[1]) ** 0.5)
    assert overall.low is not None
    assert overall.low < min(by_seed)


def test_the_mean_of_systems_is_taken_seed_by_seed(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """``fixed:4`` takes 1 and 2 s in the first cell, ``fixed:2`` 1 and 1, fp32 3; in the second it has no mean."""
    paired_times.main([str(folder), "fixed:2", "fixed:4", "--reference", "fixed:32", "--mean"])
    first, *others = capsys.readouterr().out.splitlines()[-1].split("|")[2:-1]
    assert float(first.split()[0]) == pytest.approx((1 / 3 * 2**0.5 / 3) ** 0.5, abs=0.005)
    assert [each.strip() for each in others] == ["—", "—"]


def test_what_misses_a_target_has_a_bound_and_no_mean_over_cells(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paired_times.main([str(folder), "--reference", "fixed:32", "fixed:2", "fixed:4"])
    two, four = capsys.readouterr().out.splitlines()[2:]
    assert "| 0.33 | ≥ 1.33 | — |" in two
    assert "[" in four.split("|")[-2]


def test_what_sends_no_gradient_has_iterations_to_time_alone(tmp_path: Path) -> None:
    config = small_config(systems=("fixed:32", "none"), links=LINKS[:1])
    runs = [result(system, seed, [9.0, 1.0], link=LINKS[0]) for system in config.systems for seed in (1, 2)]
    write_results(tmp_path, config, runs)
    for late_loss in (False, True):
        cells = paired_times.timings(tmp_path, late_loss=late_loss)
        assert paired_times.row(cells, "none", "fixed:32") == [None, None]
    assert None not in paired_times.row(paired_times.timings(tmp_path, 1), "none", "fixed:32")


def test_a_system_of_which_a_run_did_not_finish_has_no_ratio(tmp_path: Path) -> None:
    """Of those that did it would be the ratio of the lucky ones."""
    config = small_config(systems=("fixed:32", "fixed:4"), links=LINKS[:1])
    runs = [result(system, seed, [9.0, 1.0], link=LINKS[0]) for system in config.systems for seed in (1, 2)]
    runs[-1] = dataclasses.replace(runs[-1], outcome="diverged")
    write_results(tmp_path, config, runs)
    assert paired_times.row(paired_times.timings(tmp_path), "fixed:4", "fixed:32") == [None, None]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["fixed:7", "--reference", "fixed:4"], "'fixed:7' is not in"),
        (["--reference", "dgc"], "'dgc' is not in"),
    ],
)
def test_an_unknown_system_is_named(folder: Path, arguments: list[str], said: str) -> None:
    with pytest.raises(SystemExit, match=said):
        paired_times.main([str(folder), *arguments])


def test_a_folder_without_a_comparison_is_said_so(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"config\.json"):
        paired_times.main([str(tmp_path)])


def test_iterations_from_a_number_on_are_compared_without_their_start(tmp_path: Path) -> None:
    config = small_config(systems=("fixed:32", "fixed:4"), links=LINKS[:1])
    runs = [
        result(system, seed, [9.0, 5.0, 1.0], link=LINKS[0]) for system in config.systems for seed in (1, 2)
    ]
    seconds = {"fixed:32": [1.0, 2.0, 4.0], "fixed:4": [3.0, 9.0, 10.0]}
    runs = [dataclasses.replace(run, iterations=[2, 4, 8], seconds=seconds[run.system]) for run in runs]
    write_results(tmp_path, config, runs)
    ratio, overall = paired_times.row(paired_times.timings(tmp_path, 4), "fixed:4", "fixed:32")
    assert ratio is not None
    assert overall is not None
    assert (ratio.value, overall.value) == (pytest.approx(0.5), pytest.approx(0.5))
    runs[-1] = dataclasses.replace(runs[-1], iterations=[1, 2, 3])
    write_results(tmp_path, config, runs)
    by_system = paired_times.timings(tmp_path, 4)["digits-mlp @ emulated:100mbit"]
    assert by_system["fixed:4"] is None
    assert by_system["fixed:32"] is not None


def test_late_losses_are_compared_seed_by_seed(tmp_path: Path) -> None:
    config = small_config(systems=("fixed:32", "fixed:4"), links=LINKS[:1])
    last = {("fixed:32", 1): 1.0, ("fixed:32", 2): 4.0, ("fixed:4", 1): 0.5, ("fixed:4", 2): 1.0}
    runs = [result(system, seed, [9.0, loss], link=LINKS[0]) for (system, seed), loss in last.items()]
    write_results(tmp_path, config, runs)
    ratio, _ = paired_times.row(paired_times.timings(tmp_path, late_loss=True), "fixed:4", "fixed:32")
    assert ratio is not None
    assert ratio.value == pytest.approx((0.5 * 0.25) ** 0.5)
