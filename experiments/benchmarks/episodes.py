"""What is there to learn? The episodes that a policy learned in, by fixed widths, the goodput rule and policies.

    python experiments/benchmarks/episodes.py --json episodes.json                        # of the packaged policy
    python experiments/benchmarks/episodes.py --policies 'default mine.mqg' --widths '1/2,1,4,4>1' --episodes 20
    python experiments/benchmarks/episodes.py --policies mine.mqg --change '{"num_workers": 4}'  # other episodes

Everyone plays the same episodes, of seeds of their own: the same links, optimizers, data and initial weights, one
player after another, with the workers of training, real ones or simulated. A return is the log-loss that training
lost within the episode's budget; "4>1" is a ramp of widths in equal steps as the budget is spent. Printed are means,
and how far they are from the rule's, by pairs, with 95 % intervals (Student's t), in all and by decade of the link's
rate. "The best width of each decade" is what could be known of a link that never changes: chosen on the other half of
the episodes, so that it does not profit from chance. The rule is the one that networks begin as an imitation of, told
what they are told.
"""

import argparse
import json
import math
import random
import statistics
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import numpy as np
import numpy.typing as npt
import script
from rich.console import Console
from rich.progress import track

import mqgrad.envs
from mqgrad.agents.config import with_clock
from mqgrad.agents.warm_start import rule_action
from mqgrad.envs import BitWidthSettings
from mqgrad.experiments.estimates import Estimate, mean_with_interval
from mqgrad.policies.observation import ObservationSchema
from mqgrad.policies.policy import load_policy
from mqgrad.trainers.signals import exit_on_sigterm
from mqgrad.widths import Width, parse_width

FIRST_SEED = 10_000  # far from those of trainings
RULE = "goodput rule"
BEST = "the best width of each decade"

Player = Callable[[npt.NDArray[np.float32]], int]


class Episode(NamedTuple):
    """One player's."""

    seed: int
    player: str
    link_mbit_per_s: float | None
    episode_return: float
    mean_bits: float
    iterations: int
    heldout_loss: float = math.nan
    """Of the model at its end."""
    widths: Sequence[float] = ()
    """Of its intervals, but for the opening."""


def players_of(
    policies: Sequence[str], widths: Sequence[str], settings: BitWidthSettings
) -> dict[str, Player]:
    """By name; a fixed width has the name of its action.

    Raises:
        ValueError: a policy that has learned with other widths or observations; a width that is none of them.
    """
    players: dict[str, Player] = {}
    schema = settings.schema
    for text in widths:
        first, _, last = text.partition(">")
        ends = [parse_width(end) for end in (first, last or first)]
        if not set(ends) <= set(schema.widths):
            raise ValueError(
                f"{text} bits is none of the environment's widths, {schema.widths}: choose --widths"
            )
        players[f"{text} bits"] = partial(_ramp, schema, ends[0], ends[1])
    players[RULE] = lambda observation: rule_action(observation, schema, settings.relative_bytes)
    for path in policies:
        policy, name = load_policy(path), f"policy {Path(path).stem}"
        if policy.schema != schema:
            raise ValueError(f"{path} observes {policy.schema}, the environment gives {schema}")
        if policy.action != "absolute":
            raise ValueError(f"{path} decides by {policy.action!r}, here actions are widths")
        if name in players:
            raise ValueError(f"two policies are called {Path(path).stem!r}: rename one of the files")
        players[name] = policy.act
    return players


def _ramp(schema: ObservationSchema, first: Width, last: Width, observation: npt.NDArray[np.float32]) -> int:
    """The action nearest to the line from one width to the other over the budget that is spent."""
    wanted = first if first == last else first + (last - first) * observation[schema.at("spent")].item()
    return min(range(len(schema.widths)), key=lambda action: abs(schema.widths[action] - wanted))


def play(env: gymnasium.Env, seed: int, name: str, player: Player) -> Episode:
    """One episode from its beginning to its end."""
    observation, info = env.reset(seed=seed)
    link, rewards, bits, ended = info["link_mbit_per_s"], [], [], False
    while not ended:
        observation, reward, terminated, truncated, info = env.step(np.int64(player(observation)))
        rewards.append(float(reward))
        bits.append(float(info["bits"]))
        ended = terminated or truncated
    heldout = env.get_wrapper_attr("evaluate")()["loss"]
    return Episode(
        seed, name, link, math.fsum(rewards), statistics.fmean(bits), info["iteration"], heldout, bits
    )


def decade(episode: Episode) -> str:
    """Of the link's rate, named by its ends."""
    if episode.link_mbit_per_s is None:
        return "no link"
    exponent = math.floor(math.log10(episode.link_mbit_per_s))
    return f"{10**exponent:g}–{10 ** (exponent + 1):g} Mbit/s"


def with_best_widths(played: Sequence[Episode]) -> list[Episode]:
    """The episodes, and those of the width that was best in the other half of each decade's."""
    fixed = [each for each in played if each.player.endswith(" bits") and ">" not in each.player]
    best: list[Episode] = []
    for name in {decade(episode) for episode in fixed}:
        own = [episode for episode in fixed if decade(episode) == name]
        for half in (0, 1):
            others = [episode for episode in own if episode.seed % 2 != half]
            means = {p: _mean_return(others, p) for p in {episode.player for episode in others}}
            if means:
                width = max(means, key=means.__getitem__)
                chosen = [e for e in own if e.seed % 2 == half and e.player == width]
                best += [episode._replace(player=BEST) for episode in chosen]
    return [*played, *best]


def _mean_return(played: Sequence[Episode], player: str) -> float:
    return statistics.fmean(episode.episode_return for episode in played if episode.player == player)


def beside_rule(played: Sequence[Episode], player: str) -> Estimate | None:
    """How much more a player's return is than the rule's, by pairs."""
    returns = {episode.seed: episode.episode_return for episode in played if episode.player == RULE}
    own = [episode for episode in played if episode.player == player and episode.seed in returns]
    return mean_with_interval([episode.episode_return - returns[episode.seed] for episode in own])


def print_table(played: Sequence[Episode]) -> None:
    """One row a player, in Markdown."""
    played = with_best_widths(played)
    by_decade: Mapping[str, list[Episode]] = {
        name: [episode for episode in played if decade(episode) == name]
        for name in sorted(map(decade, played), key=lambda name: (len(name), name))
    }
    counts = [f"{name} ({len({e.seed for e in own})})" for name, own in by_decade.items()]
    names, rows = dict.fromkeys(episode.player for episode in played), []
    for name in sorted(names, key=lambda name: -_mean_return(played, name)):
        own = [episode for episode in played if episode.player == name]
        means = [
            f"{_mean_return(own, name):.3f}",
            f"{statistics.fmean(episode.heldout_loss for episode in own):.3f}",
            f"{statistics.fmean(episode.mean_bits for episode in own):.1f}",
        ]
        cells = [beside_rule(part, name) for part in (played, *by_decade.values())]
        rows.append((_of(played, name), *means, *map(_cell, cells)))
    header = ("player", "return", "held-out loss", "bits", "return minus the rule's", *counts)
    script.print_markdown(header, rows)


def _of(played: Sequence[Episode], name: str) -> str:
    """The player, and of how many episodes its means are, if it did not play all."""
    count, total = sum(e.player == name for e in played), len({e.seed for e in played})
    return name if count == total else f"{name} ({count} of {total})"


def _cell(difference: Estimate | None) -> str:
    if difference is None:
        return "–"
    if difference.low is None or difference.high is None:
        return f"{difference.value:+.3f}"
    return f"{difference.value:+.3f} [{difference.low:+.3f}, {difference.high:+.3f}]"


def report(played: Sequence[Episode], environment: Mapping[str, Any], file: Path | None) -> None:
    """Print the table and write all episodes."""
    print_table(played)
    if file is not None:
        episodes = [episode._asdict() for episode in played]
        script.write_report(file, {"environment": environment, "episodes": episodes})


def changes(text: str) -> dict[str, Any]:
    """Arguments of the environment by name, from a JSON object.

    Raises:
        argparse.ArgumentTypeError: it is none.
    """
    try:
        arguments = json.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is no JSON: {error}") from error
    if not isinstance(arguments, dict):
        raise argparse.ArgumentTypeError(f"{text!r} is no JSON object")
    return arguments


def main() -> None:
    exit_on_sigterm()  # with the episodes that are done
    parser = script.parser(__doc__)
    parser.add_argument("--policies", default="default", help="joined by spaces; the first one's episodes")
    parser.add_argument("--widths", default="1/2,1,2,4,8,32")
    parser.add_argument(
        "--change", type=changes, default={}, help="JSON, arguments of the environment instead"
    )
    parser.add_argument("--episodes", type=script.count, default=40, help="how many")
    parser.add_argument(
        "--first-seed", type=int, default=FIRST_SEED, help="of as many (default: %(default)s)"
    )
    parser.add_argument("--json", type=script.output_file, help="write every episode to this file")
    options = parser.parse_args()
    policies = options.policies.split()
    try:
        arguments = load_policy(policies[0]).provenance["config"]["env"] | options.change
        env = gymnasium.make(mqgrad.envs.ENV_ID, **with_clock(arguments))
        players = players_of(policies, options.widths.split(","), env.get_wrapper_attr("settings"))
    except (OSError, ValueError) as error:
        parser.error(str(error))
    played: list[Episode] = []
    try:
        seeds = range(options.first_seed, options.first_seed + options.episodes)
        for seed in track(seeds, "episodes", console=Console(stderr=True)):
            names = random.Random(seed).sample(list(players), len(players))  # a slow minute falls on anyone
            played += [play(env, seed, name, players[name]) for name in names]
    finally:
        try:
            if played:
                report(played, arguments, options.json)
        finally:
            env.close()


if __name__ == "__main__":
    main()
