"""The benchmark of stability: a short run, and what it says of one that diverged."""

import json
import math

import pytest
import stability


def test_a_run_that_diverged_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    short = stability.train(stability.Job("adam", 4, seed=0, iterations=25))
    assert len(short.losses) == 3
    assert all(map(math.isfinite, short.losses))
    assert short.last_loss < short.losses[0]
    assert not short.diverged

    good = stability.Run("sgd", 4, 0, [2.3, 0.5], 0.5)
    blown_up = stability.Run("sgd", 4, 1, [2.3, math.nan], math.inf)
    stuck = stability.Run("sgd", 4, 2, [2.3, 2.3], 2.3)
    assert [run.diverged for run in (good, blown_up, stuck)] == [False, True, True]
    assert json.loads(json.dumps(blown_up.to_dict(), allow_nan=False))["losses"] == [2.3, None]
    stability.print_table([good, stuck, good._replace(optimizer="adam")])
    *_, row = capsys.readouterr().out.splitlines()
    assert row == "| 4 | quantized | ddp | own | 1.400 (0.500–2.300), 1 of 2 diverged | 0.500 (0.500–0.500) |"
