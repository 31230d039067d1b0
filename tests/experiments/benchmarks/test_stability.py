"""The benchmark of stability: a short run, and what it says of one that diverged."""

import json
import math

import pytest
import stability
from stability import Plan


def test_a_run_that_diverged_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    short = stability.train(stability.Job("adam", Plan(4), seed=0, iterations=25))
    assert len(short.losses) == 3
    assert all(map(math.isfinite, short.losses))
    assert short.last_loss < short.losses[0]
    assert not short.diverged

    good = stability.Run("sgd", Plan(4), 0, [2.3, 0.5], 0.5)
    blown_up = stability.Run("sgd", Plan(4), 1, [2.3, math.nan], math.inf)
    stuck = stability.Run("sgd", Plan(4), 2, [2.3, 2.3], 2.3)
    assert [run.diverged for run in (good, blown_up, stuck)] == [False, True, True]
    assert json.loads(json.dumps(blown_up.to_dict(), allow_nan=False))["losses"] == [2.3, None]
    stability.print_table([good, stuck, good._replace(optimizer="adam")])
    *_, row = capsys.readouterr().out.splitlines()
    assert row == "| 4 | quantized | ddp | own | 1.400 (0.500–2.300), 1 of 2 diverged | 0.500 (0.500–0.500) |"


def test_a_run_may_change_its_width_once() -> None:
    assert Plan.parse("1/4") == Plan(1 / 4)
    assert Plan.parse("1>1/4@20") == Plan(1, 1 / 4, 20)
    assert str(Plan.parse("1>1/4@20")) == "1>1/4@20"
    with pytest.raises(ValueError, match=r"'1>4' must be a width, or of the form 1>4@400"):
        Plan.parse("1>4")
    same, other, constant = (
        stability.train(stability.Job("sgd", Plan.parse(text), seed=0, iterations=30))
        for text in ("2>2@20", "2>8@20", "2")
    )
    assert same.losses == constant.losses
    assert other.losses[:2] == constant.losses[:2]
    assert other.losses[2] != constant.losses[2]
    assert {"bits": 2, "then": 8, "since": 20}.items() <= other.to_dict().items()
