"""What a sweep from the command line says at its end."""

import pytest
from comparison import result

from mqgrad.experiments.compare.progress import check_outcomes


@pytest.mark.parametrize(("outcome", "more_time"), [("crashed", False), ("timed out", True)])
def test_a_run_that_had_too_little_time_can_be_given_more(outcome: str, more_time: bool) -> None:
    rows = [result("fixed:4", 1, [1.0]), result("fixed:4", 2, [], outcome=outcome, reason="limit of 1800 s")]
    with pytest.raises(
        RuntimeError, match=r"1 of 2 runs.*limit of 1800 s; --retry-failed runs them again"
    ) as error:
        check_outcomes(rows, "--retry-failed")
    assert ("--time-limit-seconds gives a run more time" in str(error.value)) is more_time
