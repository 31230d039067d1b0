"""The settings of each system, the fastest first."""

from pathlib import Path

import best_settings
import pytest
from comparison import result, small_config, write_results

from mqgrad.experiments.compare.grids import GRIDS

LINKS = ("emulated:100mbit", "emulated:1gbit")
SYSTEMS = ("plain-ddp", "fixed:1", "fixed:2", "fixed:3", "top-k:0.01", "slowmo:period=16")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """fp32 takes 3 s; 1 bit 2 s, 2 bits 1 s, 3 bits once nothing and once misses the target; top-k 2 s."""
    config = small_config(systems=SYSTEMS, links=LINKS)
    runs = []
    for link in LINKS:
        for seed in (1, 2):
            runs.append(result("plain-ddp", seed, [9.0, 9.0, *8 * [1.0]], link=link))
            runs.append(result("fixed:1", seed, [1.0], step=2.0, link=link))
            runs.append(result("fixed:2", seed, [1.0], link=link))
            misses = (link, seed) == (LINKS[1], 2)
            runs.append(result("fixed:3", seed, [9.0 if misses else 1.0], step=0.5, link=link))
            runs.append(result("top-k:0.01", seed, [1.0], step=2.0, link=link))
    write_results(tmp_path, config, runs)
    return tmp_path


def test_of_each_system_the_fastest_setting_comes_first_and_what_missed_a_target_last(folder: Path) -> None:
    cells, by_system = best_settings.ratios(folder)
    assert cells == [f"digits-mlp @ {link}" for link in LINKS]
    rows = [(system, setting) for system, setting, values in best_settings.rows(by_system) if values[0]]
    assert rows == [
        ("a fixed width", "fixed:2"),
        ("a fixed width", "fixed:1"),
        ("a fixed width", "fixed:3"),
        ("top-k", "top-k:0.01"),
        ("fp32", "plain-ddp"),
    ]
    (two,) = (values for _, setting, values in best_settings.rows(by_system) if setting == "fixed:2")
    assert [ratio and round(ratio.value, 3) for ratio in two] == [0.333, 0.333, 0.333]


def test_the_table_has_a_row_for_each(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    best_settings.main([str(folder)])
    lines = capsys.readouterr().out.splitlines()
    assert "| a fixed width | fixed:2 | 0.33 |" in lines[2]
    assert "≥" in next(line for line in lines if "fixed:3" in line)


def test_a_folder_without_a_comparison_is_named(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"best_settings\.py: "):
        best_settings.main([str(tmp_path)])


def test_whatever_the_grid_runs_has_a_row() -> None:
    grid = GRIDS["tuning"]
    run = [*grid.controllers, *grid.compressors, *grid.methods]
    rows = best_settings.rows({name: [None] for name in run})
    assert sorted(setting for _, setting, _ in rows) == sorted(run)
