"""Rules with a width per parameter: known answers, the optimum by exhaustion, and real ranks."""

import dataclasses
import io
import itertools
import json
import math

import models
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from intervals import BASE
from ranks import run_ranks

import mqgrad
from mqgrad.codecs.quantization_noise import uniform_noise
from mqgrad.controllers import make_controller
from mqgrad.controllers.l_greco import knapsack
from mqgrad.cuda_ext import CHECKSUM_BYTES
from mqgrad.statistics.interval import IntervalStatistics, ParameterStatistics, Trial
from mqgrad.widths import CODED_WIDTHS, Width

SPECS = ("l-greco:reference=3", "smoothness-layers:budget=3")


def statistics(
    *figures: tuple[int, float, float], widths: tuple[Width, ...] = CODED_WIDTHS
) -> IntervalStatistics:
    """Of parameters with these elements, ‖g‖² and peak energy, tried by a code that errs as the uniform law says."""
    parameters = [
        ParameterStatistics(
            numel=n,
            norm_sq=s,
            peak_energy=e,
            trials=tuple(Trial(uniform_noise(e, bits), s) for bits in widths),
        )
        for n, s, e in figures
    ]
    return dataclasses.replace(BASE, parameters=tuple(parameters))


def test_l_greco_moves_bits_to_where_the_error_is() -> None:
    # The law of squares is energy/(6s²), s = 1, 3, 7, 15 at 2, 3, 4, 5 bits; the roots count. At 3 bits they are
    # (30 + 1)/7.35 = 4.22. Many elements with little energy can have 2 bits, 1/2.45, or 1 bit, 1; few with much of it
    # pay for neither: 30/7.35 = 4.08 at 3 bits leaves 0.14, and 30/17.1 = 1.75 at 4 bits leaves 2.47 for the other 1.
    assert make_controller(SPECS[0]).decide(statistics((100, 1.0, 900.0), (10_000, 1.0, 1.0))) == [4, 1]


def test_l_greco_sums_norms_and_not_their_squares() -> None:
    # At 3 bits: (30 + 3)/7.35 = 4.49. One bit for the second layer takes 3 and leaves 1.49, less than the 1.75 of the
    # first at 4 bits. Of squares there would be (900 + 9)/54 = 16.8, and 3.06 + 9 = 12.1 would do.
    assert make_controller(SPECS[0]).decide(statistics((1000, 1.0, 900.0), (3000, 1.0, 9.0))) == [5, 1]


def test_l_greco_keeps_the_uniform_width_where_nothing_is_gained() -> None:
    assert make_controller(SPECS[0]).decide(statistics((100, 1.0, 10.0))) == [3]
    alike = statistics((100, 1.0, 10.0), (100, 1.0, 10.0))
    assert make_controller(SPECS[0]).decide(alike) == [3, 3]
    # Without any error at the reference, nothing but 16 bits is exact enough.
    exact = make_controller("l-greco:widths=2+16+32,start=32,reference=32")
    tried = statistics((100, 1.0, 10.0), (50, 1.0, 0.0), widths=(2, 16, 32))
    assert exact.decide(tried) == [16, 2]


def test_l_greco_averages_errors_over_decisions() -> None:
    controller = make_controller("l-greco:keep=0.5,widths=1+4")
    controller.decide(statistics((10, 1.0, 4.0), (10, 1.0, 8.0), widths=(1, 4)))
    controller.decide(statistics((10, 1.0, 8.0), (10, 1.0, 0.0), widths=(1, 4)))
    assert controller.state_dict()["errors"] == pytest.approx([6.0, 6.0 / 294, 4.0, 4.0 / 294])


def test_l_greco_forgets_what_ddp_brings_no_more() -> None:
    """The error of layers that were frozen was the others' to make."""
    rule, layer = make_controller("l-greco:reference=4"), (100, 1.0, 10.0)
    for _ in range(10):
        rule.decide(statistics(layer, layer, (100, 1.0, 160.0)))
    assert list(rule.decide(statistics(layer, layer, (0, 0.0, 0.0))))[:2] == [4, 4]


def test_l_greco_goes_by_measured_errors_and_not_by_peaks() -> None:
    """The same peaks, and a code that loses nothing of the first parameter from two bits on."""
    trials = (
        [[0.1 if bits == 1 else 0.0, 1.0] for bits in CODED_WIDTHS],
        [[4.0**-b, 1.0] for b in CODED_WIDTHS],
    )
    parameters = tuple(
        ParameterStatistics(numel=100, norm_sq=1.0, peak_energy=9.0, trials=tuple(Trial(*t) for t in each))
        for each in trials
    )
    assert make_controller(SPECS[0]).decide(dataclasses.replace(BASE, parameters=parameters)) == [2, 3]
    untried = tuple(dataclasses.replace(each, trials=()) for each in parameters)
    with pytest.raises(ValueError, match="needs the errors of trial compressions"):
        make_controller(SPECS[0]).decide(dataclasses.replace(BASE, parameters=untried))


layers = st.lists(
    st.tuples(st.integers(1, 10**6), st.just(1.0), st.floats(1e-3, 1e3)), min_size=1, max_size=5
)


@given(layers)
def test_l_greco_never_exceeds_the_error_or_size_of_the_uniform_width(
    figures: list[tuple[int, float, float]],
) -> None:
    widths = make_controller(SPECS[0]).decide(statistics(*figures))
    sizes = [n * (bits - 3) for (n, _, _), bits in zip(figures, widths, strict=True)]
    errors = [
        math.sqrt(uniform_noise(e, b)) - math.sqrt(uniform_noise(e, 3))
        for (_, _, e), b in zip(figures, widths, strict=True)
    ]
    assert sum(sizes) <= 0
    assert sum(errors) <= 1e-9 * sum(math.sqrt(e) for _, _, e in figures)


@pytest.mark.parametrize("seed", range(10))
def test_knapsack_is_the_optimum_but_for_the_rounding_of_errors(seed: int) -> None:
    random = np.random.default_rng(seed)
    sizes, errors = random.integers(1, 50, (5, 4)).astype(float), random.random((5, 4))
    allowed, steps = 1.2, 5000
    chosen = knapsack(sizes, errors, allowed, steps)

    def least(bound: float) -> float:
        choices = itertools.product(range(4), repeat=5)
        fitting = (c for c in choices if errors[range(5), c].sum() <= bound)
        return min((sizes[range(5), c].sum() for c in fitting), default=math.inf)

    size = math.inf if chosen is None else sizes[range(5), chosen].sum()
    assert chosen is None or errors[range(5), chosen].sum() <= allowed
    assert least(allowed) <= size <= least(allowed - 5 * allowed / steps)


def test_smoothness_layers_follows_the_formula() -> None:
    # 100 and 300 elements, ‖g‖_∞ = 4 and 1, L = 4 and 1 (‖g‖²/d): log2 ‖g‖_∞ + ½·log2 L = 3 and 0, of mean 0.75.
    widths = make_controller("smoothness-layers:budget=4").decide(
        statistics((100, 400.0, 1600.0), (300, 300.0, 300.0))
    )
    assert widths == [6, 3]  # 4 + 3 − 0.75 = 6.25 and 4 − 0.75 = 3.25


def test_smoothness_layers_shares_what_the_ends_of_the_range_leave() -> None:
    # Needs 0, 0, 40: the third would have 4 + 26.7 bits and gets 8, and the others (12 − 8) / 2 = 2.
    figures = [(10, 10.0, 10.0), (10, 10.0, 10.0), (10, 10.0 * 2.0**40, 10.0 * 2.0**40)]
    assert make_controller("smoothness-layers:budget=4").decide(statistics(*figures)) == [2, 2, 8]
    # One that is zero has the fewest bits.
    assert make_controller("smoothness-layers:budget=4").decide(
        statistics((10, 0.0, 0.0), (10, 1.0, 1.0))
    ) == [1, 7]


@given(layers, st.floats(1, 8))
def test_smoothness_layers_stays_near_its_budget(
    figures: list[tuple[int, float, float]], budget: float
) -> None:
    widths = make_controller(f"smoothness-layers:budget={budget}").decide(statistics(*figures))
    elements = sum(n for n, _, _ in figures)
    mean = sum(n * bits for (n, _, _), bits in zip(figures, widths, strict=True)) / elements
    assert abs(mean - budget) <= 0.5 + 1e-6


@pytest.mark.parametrize("spec", SPECS)
def test_a_restored_rule_continues_identically(spec: str) -> None:
    run = [statistics((100, 1.0 + n, 900.0 / (n + 1)), (1000, 2.0, 1.0 + n)) for n in range(12)]
    straight, first, second = (make_controller(spec) for _ in range(3))
    expected = [straight.decide(interval) for interval in run]
    before = [first.decide(interval) for interval in run[:5]]
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert before + [second.decide(interval) for interval in run[5:]] == expected
    with pytest.raises(ValueError, match=r"was saved with widths \(4, 9\)"):
        second.load_state_dict(first.state_dict() | {"widths": (4, 9)})


@pytest.mark.parametrize("bad", [math.nan, math.inf, -1.0])
@pytest.mark.parametrize("spec", SPECS)
def test_an_interval_that_overflowed_keeps_the_widths_and_the_state(spec: str, bad: float) -> None:
    controller = make_controller(spec)
    assert controller.decide(statistics((10, bad, bad), (10, 1.0, 1.0))) == 4
    widths = controller.decide(statistics((10, 1.0, 9.0), (10, 1.0, 1.0)))
    before = controller.state_dict()
    assert controller.decide(statistics((10, bad, bad), (10, 1.0, 1.0))) == widths
    assert controller.decide(statistics((10, 0.0, 0.0), (10, 0.0, 0.0))) == widths
    assert controller.state_dict() == before


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("l-greco:reference=9", "reference: bit width 9"),
        ("l-greco:steps=0", "steps must be .*not 0"),
        ("l-greco:keep=1", "keep must be .*not 1.0"),
        ("smoothness-layers:budget=9", "budget must be from 1 to 8, not 9.0"),
    ],
)
def test_wrong_specs_are_refused_by_name(spec: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_controller(spec)


@pytest.mark.parametrize("spec", SPECS)
def test_a_compressor_with_one_width_for_all_is_refused_before_the_run(spec: str) -> None:
    with pytest.raises(
        pytest.fail.Exception, match=r"ValueError: .*, and MinMax takes one width for all parameters"
    ):
        run_ranks(lambda rank: mqgrad.CompressionState(make_controller(spec), compressor="minmax"), 1)


@pytest.mark.parametrize(
    "spec", ["l-greco:reference=6,widths=4+5+6+7+8", "smoothness-layers:budget=6,widths=4+5+6+7+8"]
)
def test_a_real_run_keeps_replicas_equal_counts_its_bytes_and_resumes(spec: str) -> None:
    def start():
        torch.manual_seed(0)
        # A large layer with small gradients and a small one with large gradients; whole scale buckets.
        model = torch.nn.Sequential(torch.nn.Linear(64, 64, bias=False), torch.nn.Linear(64, 8, bias=False))
        model[1].weight.data.mul_(0.05)
        state = mqgrad.CompressionState(make_controller(spec + ",interval=2"))
        return models.compressed_ddp(model, state), torch.optim.SGD(model.parameters(), lr=0.1), state

    def rank_main(rank: int):
        model, optimizer, state = start()
        state.mark()
        models.train(model, optimizer, state, rank, range(5))
        file = io.BytesIO()
        torch.save({"model": model.state_dict(), "state": state.state_dict()}, file)
        assert state.parameter_bits is not None
        widths = {p.numel(): bits for p, bits in zip(state.parameters, state.parameter_bits, strict=True)}
        before = dataclasses.replace(state.totals)
        straight = models.train(model, optimizer, state, rank, range(5, 6))
        sent = state.totals.since(before).wire_bytes
        straight += models.train(model, optimizer, state, rank, range(6, 10))
        state.close()
        file.seek(0)
        saved = torch.load(file)
        model, optimizer, state = start()
        model.load_state_dict(saved["model"])
        state.load_state_dict(saved["state"])
        resumed = models.train(model, optimizer, state, rank, range(5, 10))
        state.close()
        return straight == resumed, straight[-1], widths, sent

    first, second = run_ranks(rank_main)
    assert first[0]
    assert first[:3] == second[:3]
    widths = first[2]
    assert len(set(widths.values())) == 2
    # Two ranks send one another all they have: a coded model each.
    coded = sum(n * bits / 8 + 4 * n / 512 for n, bits in widths.items())
    padding = 512 * min(widths.values()) / 8 + 4  # nine scale buckets fill shards of five
    # In mid-interval, nothing but gradients.
    assert first[3] == second[3] == coded + padding + CHECKSUM_BYTES
