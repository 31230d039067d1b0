"""How much of the best fixed width's progress the goodput rule makes on simulated links, which stay or change."""

import dataclasses
import math
import random
from collections.abc import Callable

import pytest
from intervals import BASE

from mqgrad.codecs.quantization_noise import Coding
from mqgrad.controllers.goodput import Goodput
from mqgrad.widths import Width

WIDTHS = (1 / 4, 1 / 2, 1, 2, 3, 4, 6, 8, 16, 32)
NUM_ELEMENTS = 240_000
COMPUTED, CODED, WAITED = 0.009, 0.001, 0.0005
"""Seconds of an iteration: without communication, of its codes, and of what no width changes."""
JITTER = 0.08  # standard deviation of an interval's seconds, relative
BUDGET = 6.0  # seconds

Link = Callable[[float], float]
"""Mbit/s by the seconds that have passed."""

INTERVAL = dataclasses.replace(
    BASE,
    world_size=2,
    gradient_signal=0.6,
    gradient_noise=0.8,
    peak_energy=9.6 * 1.1,
    coding=Coding(rotated=(1, 2, 3), feedback=True),
)


def progress(link: Link, update_exponent: float, width: Width | None = None, seed: int = 0) -> float:
    """Iterations without noise that a run's iterations are worth; by the rule, or at one width."""
    rng, rule = random.Random(seed), Goodput(widths=WIDTHS)
    bits, iterations, seconds, total = width or rule.initial_bits, 2, 0.0, 0.0
    while seconds < BUDGET:
        computed = COMPUTED * math.exp(rng.gauss(0.0, JITTER))
        coded = CODED if bits < 32 else 0.0
        step_seconds = computed + WAITED + coded + NUM_ELEMENTS * bits / (link(seconds) * 1e6)
        interval = dataclasses.replace(
            INTERVAL,
            bits=bits,
            losses=(1.0,) * iterations,
            step_seconds=step_seconds,
            compute_seconds=0.9 * computed,
            encode_seconds=coded / 2,
            decode_seconds=coded / 2,
            fixed_wire_seconds=WAITED,
            update_exponent=update_exponent,
        )
        seconds += interval.seconds
        total += iterations * interval.efficiency(bits)
        if width is None:
            bits = rule.decide(interval)
        iterations = rule.interval
    return total


def beside_best_width(link: Link, update_exponent: float) -> float:
    """Mean over runs of the rule's progress, divided by that of the fixed width that makes the most."""
    best = max(progress(link, update_exponent, width) for width in WIDTHS)
    return sum(progress(link, update_exponent, seed=seed) for seed in range(4)) / 4 / best


@pytest.mark.parametrize("update_exponent", [0.1, 0.9])
@pytest.mark.parametrize("mbit_per_s", [10, 30, 100, 300, 1000, 10_000])
def test_on_a_link_that_stays_little_is_tried_in_vain(mbit_per_s: float, update_exponent: float) -> None:
    assert beside_best_width(lambda _: mbit_per_s, update_exponent) > 0.955


@pytest.mark.parametrize("update_exponent", [0.1, 0.9])
@pytest.mark.parametrize(("before", "after"), [(30, 3000), (3000, 30)])
def test_where_the_link_changes_no_fixed_width_does_better(
    before: float, after: float, update_exponent: float
) -> None:
    assert beside_best_width(lambda seconds: before if seconds < 3 else after, update_exponent) > 1.02
