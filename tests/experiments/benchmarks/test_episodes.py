"""The benchmark of what there is to learn, on episodes that are given and on short real ones."""

import json
from pathlib import Path

import episodes
import numpy as np
import pytest

from mqgrad.envs import BitWidthSettings


def test_differences_are_of_the_same_episodes() -> None:
    of_rule = [episodes.Episode(seed, episodes.RULE, 50.0, float(seed), 1.0, 10) for seed in range(4)]
    other = [episodes.Episode(seed, "1 bits", 50.0, seed + 0.5, 1.0, 10) for seed in range(1, 6)]
    difference = episodes.beside_rule([*of_rule, *other], "1 bits")
    assert difference == (0.5, 0.5, 0.5)
    assert episodes.beside_rule(of_rule, "1 bits") is None


def test_the_best_width_is_chosen_on_other_episodes() -> None:
    """Of two widths, each of which is better in one half by chance, that of the other half is taken."""
    played = [
        episodes.Episode(seed, f"{bits} bits", 50.0, 1.0 if seed % 2 == bits % 2 else 0.0, bits, 10)
        for seed in range(6)
        for bits in (1, 2)
    ]
    best = episodes.with_best_widths(played)[len(played) :]
    assert [episode.seed for episode in sorted(best)] == list(range(6))
    assert {episode.episode_return for episode in best} == {0.0}
    assert {episode.player for episode in best} == {episodes.BEST}


def test_means_of_fewer_episodes_say_so(capsys: pytest.CaptureFixture[str]) -> None:
    """Where a decade has one episode, there is no other half to choose the best width on."""
    links = dict.fromkeys(range(4), 50.0) | {4: 5000.0}
    names = ("1 bits", episodes.RULE)
    episodes.print_table(
        [episodes.Episode(s, name, link, 1.0, 1.0, 10) for s, link in links.items() for name in names]
    )
    assert f"| {episodes.BEST} (4 of 5) |" in (table := capsys.readouterr().out)
    assert "| 1 bits |" in table


def test_a_ramp_follows_the_budget_that_is_spent() -> None:
    settings = BitWidthSettings(widths=(1, 2, 3, 4, 8))
    player = episodes.players_of([], ["4>1", "3"], settings)["4>1 bits"]
    observation = np.zeros(settings.schema.size, np.float32)
    taken = []
    for spent in (0.0, 0.3, 0.6, 0.9, 1.0):
        observation[settings.schema.at("spent")] = spent
        taken.append(settings.widths[player(observation)])
    assert taken == [4, 3, 2, 1, 1]
    with pytest.raises(ValueError, match="4>5 bits is none of the environment's widths"):
        episodes.players_of([], ["4>5"], settings)


def test_everyone_plays_the_same_episodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        episodes, "with_clock", lambda given: {**given, "budget_seconds": None, "max_steps": 2}
    )
    file = tmp_path / "episodes.json"
    options = ["--widths", "1", "--episodes", "2", "--first-seed", "70", "--json", str(file)]
    monkeypatch.setattr("sys.argv", ["episodes.py", *options])
    episodes.main()
    played = json.loads(file.read_text())["episodes"]
    for of_one_seed in (played[:3], played[3:]):  # in an order of its own
        players = {episode["player"]: episode for episode in of_one_seed}
        assert players.keys() == {"1 bits", episodes.RULE, "policy default"}
        assert players["1 bits"]["mean_bits"] == 1.0
    assert [episode["seed"] for episode in played] == [70] * 3 + [71] * 3
    assert len({episode["link_mbit_per_s"] for episode in played}) == 2
    assert {episode["iterations"] for episode in played} == {22}
    assert players["1 bits"]["widths"] == [1, 1]
    assert all(0 < episode["heldout_loss"] < 10 for episode in played)
    table = capsys.readouterr().out
    assert f"| {episodes.RULE} |" in table
    assert "Mbit/s (" in table
