"""The arguments of the environment."""

import ast
import dataclasses
import inspect
import math
import re
import warnings
from typing import Any

import pytest
from toy_cluster import CLOCK, ToyCluster

from mqgrad.envs import BitWidthEnv, BitWidthSettings

NUMBERS = (
    "num_workers",
    "link_latency_ms",
    "interval",
    "opening",
    "period",
    "discount_per_second",
    "smoothing_seconds",
    "divergence_penalty",
    "timeout_seconds",
)
"""Arguments for which None means nothing."""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"workload": "digits-rnn"}, "digits-rnn.*digits-cnn"),
        ({"workload_settings": {"depth": 3}}, "depth"),
        ({"compressor": "smoothness", "widths": (32,)}, "needs smoothness matrices.*'digits-cnn' does not"),
        ({"preset": "paper"}, "'paper'.*authors"),
        ({"observation": "all"}, "observation 'all'.*full, loss, authors"),
        ({"action": "relative"}, "action 'relative'.*keep-or-increase"),
        ({"reward": "loss"}, "reward 'loss'.*log-loss"),
        ({"widths": (2, 9)}, "9"),
        ({"widths": (4, 2)}, "increasing"),
        ({"widths": ()}, "non-empty"),
        ({"widths": 4}, "widths must be a sequence.*, not 4"),
        ({"initial_bits": 5, "widths": (2, 4)}, r"initial_bits 5 must be one of widths, \(2, 4\)"),
        ({"num_workers": 0}, "num_workers .*, not 0"),
        ({"interval": 2.5}, r"interval .*, not 2\.5"),
        ({"opening": 0}, "opening .*, not 0"),
        ({"period": 0}, "period .*, not 0"),
        ({"period": 2, "clock": CLOCK}, "period 2 needs measured seconds"),
        *(({name: None}, f"{name} must be .*, not None") for name in NUMBERS),
        ({"link_mbit_per_s": (None, 10)}, "link_mbit_per_s must be .*, not None"),
        ({"budget_seconds": -1}, "budget_seconds .*, not -1"),
        ({"budget_seconds": None}, "max_steps"),
        ({"link_mbit_per_s": 0}, "link_mbit_per_s .*, not 0"),
        ({"link_mbit_per_s": (100, 10)}, r"\(100, 10\)"),
        ({"link_mbit_per_s": (1, 2, 3)}, r"\(1, 2, 3\)"),
        ({"link_mbit_per_s": "100"}, "'100'"),
        ({"link_latency_ms": -1}, "link_latency_ms .*, not -1"),
        ({"discount_per_second": 1.5}, r"discount_per_second .*, not 1\.5"),
        ({"smoothing_seconds": -1}, "smoothing_seconds .*, not -1"),
        ({"preset": "authors", "smoothing_seconds": 2}, "smoothing_seconds=2.* of the reward 'log-loss'"),
        ({"preset": "authors", "discount_per_second": 0.5}, r"discount_per_second=0\.5 are of the reward"),
        ({"simulated": True}, "simulated=True needs a clock"),
        ({"clock": "modelled"}, "clock 'modelled'.*ModelClock"),
        ({"timeout_seconds": math.nan}, "timeout_seconds .*, not nan"),
        ({"render_mode": "human"}, "render_mode 'human'"),
        ({"bits": 4}, "unknown argument bits"),
    ],
)
def test_wrong_arguments_are_named(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        BitWidthEnv(**arguments)


def test_where_seconds_count_for_nothing_that_is_said(toy: ToyCluster) -> None:
    with pytest.warns(
        RuntimeWarning, match=r"max_steps=4 ends episodes, and budget_seconds is None: seconds then count"
    ):
        BitWidthEnv(cluster=toy, budget_seconds=None, max_steps=4)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        BitWidthEnv(cluster=toy, budget_seconds=None, max_steps=4, discount_per_second=0.9)
        BitWidthEnv(cluster=toy, max_steps=4)
        BitWidthEnv(preset="authors", cluster=toy)


def test_that_one_worker_sends_nothing_is_said(toy: ToyCluster) -> None:
    with pytest.warns(RuntimeWarning, match="num_workers is 1: one worker sends nothing.* at least 2"):
        BitWidthEnv(workload="logreg", simulated=True, clock=CLOCK, num_workers=1)
    toy.world_size = 1  # as of a torchrun job
    with pytest.warns(RuntimeWarning, match="num_workers is 1"):
        BitWidthEnv(cluster=toy)


def test_arguments_win_over_the_preset(toy: ToyCluster) -> None:
    settings = BitWidthEnv(preset="authors", cluster=toy, max_steps=7).settings
    assert (settings.max_steps, settings.reward) == (7, "authors")
    settings = BitWidthEnv(preset="authors", cluster=toy, widths=(4, 8)).settings  # none begins at its 2 bits
    assert (settings.widths, settings.initial_bits) == ((4, 8), 4)


def test_the_table_of_arguments_has_every_setting_with_its_default() -> None:
    """It is the only signature that ``BitWidthEnv(**arguments)`` has."""
    rows = re.findall(
        r"^ *\| `(\w+)` *\|[^|]*\| *`(.*?)` *\|", inspect.getdoc(BitWidthEnv) or "", re.MULTILINE
    )
    told = {name: ast.literal_eval(default) for name, default in rows}
    fields = {field.name: field.default for field in dataclasses.fields(BitWidthSettings)}
    beside = {"preset", "cluster", "render_mode"}
    assert set(told) == {*fields, *beside}
    assert {name: told[name] for name in fields} == fields
