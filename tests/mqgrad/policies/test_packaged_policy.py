"""The policy that comes with the package sees what it was trained on, and decides as it did."""

import pytest
from intervals import statistics

from mqgrad.codecs.quantization_noise import Coding
from mqgrad.policies.observer import Observer
from mqgrad.policies.policy import load_policy
from mqgrad.statistics.interval import IntervalStatistics


def some_run(bits: float, seconds: float, exponent: float, world_size: int) -> list[IntervalStatistics]:
    """Of five intervals at one width, on two or four ranks whose seconds are mostly waiting, or hardly any."""
    coding = Coding(rotated=(1, 2, 3), recoded=world_size > 2, feedback=True)
    known = {"world_size": world_size, "bits": bits, "coding": coding, "update_exponent": exponent}
    waited = {"step_seconds": 0.02 + seconds, "compute_seconds": 0.02, "fixed_wire_seconds": 0.001}
    return [
        statistics(
            **known, **waited, losses=(2.0 / (1 + k),) * 10, encode_seconds=0.002, gradient_noise=2.0 * k
        )
        for k in range(5)
    ]


RUNS = {
    "slow link, momentum SGD": (4, 0.2, 1.0, 4),
    "fast link, momentum SGD": (4, 0.004, 1.0, 2),
    "slow link, Adam": (1, 0.05, 0.0, 4),
    "fast link, Adam": (8, 0.004, 0.0, 2),
    "below one bit": (1 / 4, 0.01, 0.5, 4),
}
PACKAGED: dict[str, tuple[list[float], float]] = {
    "slow link, momentum SGD": ([1, 1, 1, 1, 1], 60.5438),
    "fast link, momentum SGD": ([8, 8, 8, 8, 8], -122.3828),
    "slow link, Adam": ([1, 1, 1, 1, 1], 44.0327),
    "fast link, Adam": ([8, 8, 8, 8, 8], -130.4159),
    "below one bit": ([1 / 2, 8, 8, 8, 8], -133.2655),
}
"""Of each run: the widths that the packaged policy decided when it was released, and the sum of all that it saw."""


@pytest.mark.parametrize("name", RUNS)
def test_the_policy_that_comes_with_the_package_sees_and_decides_what_it_did(name: str) -> None:
    """If this fails, an observation has changed its meaning: raise SCHEMA_VERSION, and train the policy again."""
    policy = load_policy("default", budget_seconds=60.0)
    policy.falls_back = False
    observer = Observer(policy.schema, budget_seconds=60.0)
    run = some_run(*RUNS[name])
    widths, seen = PACKAGED[name]
    assert sum(float(observer.observe(interval).sum()) for interval in run) == pytest.approx(seen, abs=1e-3)
    assert [policy.decide(interval) for interval in run] == widths


def test_the_policy_that_comes_with_the_package_tells_where_it_is_from() -> None:
    policy = load_policy("default", budget_seconds=60.0)
    assert policy.provenance["algorithm"] == "PPO"
    assert policy.budget_seconds == 60.0
