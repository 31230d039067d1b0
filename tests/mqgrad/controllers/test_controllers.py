"""What holds for all rules with one width: their state, the registry, and real ranks."""

import json
import math
from pathlib import Path

import models
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from intervals import BASE, statistics
from ranks import run_ranks
from scripted import Scripted

import mqgrad
from mqgrad.controllers import make_controller
from mqgrad.controllers.base import ControllerTraits, traits_of
from mqgrad.controllers.rule import nearest
from mqgrad.policies.policy import policy_path
from mqgrad.statistics.interval import IntervalStatistics

SPECS = (
    "accordion:window=2",
    "adaquantfl",
    "budget-ramp:budget_seconds=3,end=8",
    "dadaquant:patience=1",
    "dq-sgd:budget=3.5",
    "dq-sgd:error=0.02",
    "dq-sgd:horizon=12",
    "feddq",
    "fixed:4",
    "goodput",
    "gravac:window=1",
    "linear-ramp:decisions=5",
    "mqgrad-authors:exploration=0.5",
    "random-ramp:decisions=6,seed=1",
)
RULES = tuple(spec for spec in SPECS if not spec.startswith("fixed"))


# What holds for all of them.


def some_run(length: int) -> list[IntervalStatistics]:
    return [
        statistics(
            losses=(3.0 * 0.8**n,),
            peak_energy=60 * 0.7**n,
            gradient_signal=0.7**n,
            gradient_noise=9 * 0.9**n,
            wire_seconds=0.05 * (1 + n % 3),
            step_seconds=0.1 + 0.01 * n,
        )
        for n in range(length)
    ]


@pytest.mark.parametrize("spec", SPECS)
def test_a_restored_controller_continues_identically(spec: str) -> None:
    run = some_run(16)
    straight, first, second = make_controller(spec), make_controller(spec), make_controller(spec)
    expected = [straight.decide(interval) for interval in run]
    before = [first.decide(interval) for interval in run[:7]]
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert second.state_dict() == first.state_dict()
    assert before + [second.decide(interval) for interval in run[7:]] == expected


@pytest.mark.parametrize("spec", RULES)
def test_a_saved_state_does_not_change_afterwards(spec: str) -> None:
    controller = make_controller(spec)
    for interval in some_run(4):
        controller.decide(interval)
    saved = controller.state_dict()
    before = json.dumps(saved)
    controller.decide(BASE)
    assert json.dumps(saved) == before


@pytest.mark.parametrize("spec", RULES)
def test_the_state_of_something_else_is_refused(spec: str) -> None:
    controller = make_controller(spec)
    with pytest.raises(ValueError, match=f"saved state of {type(controller).__name__} lacks "):
        controller.load_state_dict({"bits": 4})
    with pytest.raises(ValueError, match=r"was saved with widths \(2, 9\), and its widths are"):
        controller.load_state_dict(controller.state_dict() | {"widths": (2, 9)})


FIGURES = ("step_seconds", "compute_seconds", "wire_seconds")
GRADIENT_FIGURES = ("gradient_signal", "gradient_noise", "peak_energy", "update_exponent")


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("spec", [spec for spec in RULES if "ramp" not in spec])
def test_an_interval_that_overflowed_keeps_the_width_and_the_state(spec: str, bad: float) -> None:
    controller = make_controller(spec)
    for interval in some_run(5):
        width = controller.decide(interval)
    before = controller.state_dict()
    broken = dict.fromkeys((*FIGURES, *GRADIENT_FIGURES), bad)
    assert controller.decide(statistics(losses=(bad,), **broken)) == width
    assert controller.state_dict() == before


any_float = st.floats(allow_nan=True, allow_infinity=True)


@pytest.mark.parametrize("spec", RULES)
@given(
    intervals=st.lists(
        st.builds(
            lambda loss, bits, values: statistics(losses=(loss,), bits=bits, **values),
            loss=any_float,
            bits=st.sampled_from(mqgrad.WIDTHS),
            values=st.fixed_dictionaries(dict.fromkeys((*FIGURES, *GRADIENT_FIGURES), any_float)),
        ),
        min_size=1,
        max_size=5,
    )
)
def test_whatever_is_measured_the_width_is_allowed_and_the_state_finite(
    spec: str, intervals: list[IntervalStatistics]
) -> None:
    controller = make_controller(spec)
    for interval in intervals:
        assert controller.decide(interval) in controller.widths
        json.dumps(controller.state_dict(), allow_nan=False)


@pytest.mark.parametrize("spec", RULES)
def test_widths_are_restricted_to_those_given(spec: str) -> None:
    name, _, arguments = spec.partition(":")
    spec = f"{name}:{arguments},widths=2+4+8,start=" + ("8" if name in ("accordion", "feddq") else "2")
    controller = make_controller(spec.replace("budget=3.5", "budget=3"))
    assert {controller.decide(interval) for interval in some_run(20)} <= {2, 4, 8}


def test_fixed_bits_refuse_what_they_have_not_saved() -> None:
    fixed = mqgrad.FixedBits(4)
    fixed.load_state_dict(fixed.state_dict())
    with pytest.raises(ValueError, match="saved state of FixedBits also has bits"):
        fixed.load_state_dict({"bits": 4})


def test_nearest_width() -> None:
    assert [nearest(value, (2, 4, 8)) for value in (-9, 2.9, 3, 5.9, 6, 99)] == [2, 2, 4, 4, 8, 8]


# By name.


def test_arguments_reach_the_controller() -> None:
    assert make_controller("fixed:4") == mqgrad.FixedBits(4)
    assert make_controller("fixed:4,interval=5") == mqgrad.FixedBits(4, interval=5)
    assert make_controller("fixed:4", seed=3) == mqgrad.FixedBits(4)
    assert make_controller("random-ramp", seed=3) == make_controller("random-ramp:seed=3")
    assert make_controller("random-ramp:seed=4", seed=3) == make_controller("random-ramp:seed=4")
    assert make_controller("budget-ramp", 60.0) == make_controller("budget-ramp:budget_seconds=60")
    spec = "dq-sgd:budget=3,widths=2+3+4,horizon=9,contraction=0.5,interval=7"
    expected = mqgrad.DQSGD(budget=3.0, widths=(2, 3, 4), horizon=9, contraction=0.5, interval=7)
    assert make_controller(spec) == expected
    assert make_controller("goodput") == mqgrad.Goodput()


def test_whether_there_is_a_fallback_to_32_bits_is_said_by_name(tmp_path: Path) -> None:
    path = tmp_path / "4:2.mqg"
    path.write_bytes(policy_path("default").read_bytes())
    for name in ("default", str(path), "goodput"):
        assert make_controller(name).falls_back
        assert make_controller(f"{name}:falls_back=true").falls_back
        assert not make_controller(f"{name}:falls_back=false").falls_back


def test_arguments_leave_a_policy_its_budget() -> None:
    policy = make_controller("default:falls_back=false", budget_seconds=7.0)
    assert isinstance(policy, mqgrad.FrozenPolicy)
    assert policy.budget_seconds == 7.0


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("godput", "unknown controller 'godput'; known: .*dq-sgd.*fixed.*goodput.*random-ramp"),
        ("fixed", "'bits' is missing"),
        ("fixed:x", "bits 'x' is not a number of bits, such as 4 or 1/4"),
        ("fixed:9", "'fixed:9': bit width 9"),
        ("fixed:4,interval=0", "interval must be .*not 0"),
        ("fixed:4,bits=3", "'bits' is given twice"),
        ("dq-sgd:4", "'4' must be written as argument=value; known: .*budget"),
        ("dq-sgd:budgit=4", "unknown argument 'budgit'; known: .*budget.*horizon"),
        ("dq-sgd:bits=4", "unknown argument 'bits'"),
        ("dq-sgd:budget=much", "budget 'much' is not a number"),
        ("dq-sgd:budget=9", "budget must be from 1 to 8, not 9.0"),
        ("dq-sgd:budget=nan", "budget must be .*not nan"),
        ("dq-sgd:integral_gain=-1", "integral_gain must be .*not -1.0"),
        ("dq-sgd:error=0", "error must be a finite number above 0, not 0.0"),
        ("dq-sgd:contraction=0.5", "contraction 0.5 needs a horizon"),
        ("dq-sgd:contraction=2,horizon=5", "contraction must be .*not 2.0"),
        ("dq-sgd:horizon=0", "horizon must be .*not 0"),
        ("random-ramp:start=8,end=2", "end 2 must be at least start, 8"),
        ("linear-ramp:end=9", "end: bit width 9"),
        ("budget-ramp", "argument 'budget_seconds' is missing"),
        ("budget-ramp:budget_seconds=0", "budget_seconds must be a finite number above 0"),
        ("random-ramp:decisions=3", "decisions 3 is too few"),
        ("adaquantfl:start=1", "start 1 must be at least 2"),
        ("dadaquant:patience=0", "patience must be .*not 0"),
        ("feddq:widths=2-4", "widths '2-4' is not numbers of bits joined by"),
        ("feddq:widths=8+2", "increasing"),
        ("feddq:widths=2+4", "start: bit width 8"),
        ("accordion:start=2,few=4", "few 4 must be at most start, 2"),
        ("accordion:threshold=nan", "threshold must be .*not nan"),
        ("goodput:keep=1", "keep must be .*not 1.0"),
        ("goodput:interval=0", "interval must be .*not 0"),
        ("gravac:least_gain=2", "least_gain must be .*not 2.0"),
        ("default:falls_back=no", "falls_back 'no' is not true or false"),
        ("default:falls_back", "must be written as argument=value; known: falls_back"),
        ("mine.mqg:fallback=false", "unknown argument 'fallback'; known: falls_back"),
        ("mqgrad-authors:exploration=2", "exploration must be from 0 to 1, not 2.0"),
        ("mqgrad-authors:discount=-1", "discount must be .*not -1.0"),
        ("mqgrad-authors:learning_rate=nan", "learning_rate must be .*not nan"),
    ],
)
def test_wrong_specs_are_refused_by_name(spec: str, message: str) -> None:
    with pytest.raises(ValueError, match=message) as error:
        make_controller(spec)
    assert repr(spec) in str(error.value)


def test_what_a_controller_asks_for_is_read_where_it_says_so() -> None:
    seen = traits_of(Scripted([4], opening=3, wants_parameters=True, trial_widths=[2, 8]))
    assert seen == ControllerTraits(opening=3, wants_parameters=True, trial_widths=(2, 8))
    assert traits_of(None) == ControllerTraits()
    layers = traits_of(make_controller("l-greco:widths=2+4"))
    assert layers.parameter_widths == layers.choices == (2, 4)  # each of them once, though it is tried, too


# On real ranks.


def test_every_name_drives_ddp_at_the_same_widths_on_all_ranks() -> None:
    def rank_main(rank: int) -> dict[str, list[int]]:
        widths = {}
        for spec in SPECS:
            controller = make_controller(spec + ("," if ":" in spec else ":") + "interval=2")
            model = models.small_model(width=32, layers=1)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            state = mqgrad.CompressionState(controller)
            ddp = models.compressed_ddp(model, state)
            state.mark()
            widths[spec] = []
            for _ in range(7):
                optimizer.zero_grad()
                x, y = models.batch(rank, len(widths[spec]), width=32)
                loss = torch.nn.functional.cross_entropy(ddp(x), y)
                loss.backward()
                # What is in force, and what this rank's own copy of the rule decided: rank 0's is what counts.
                widths[spec].append(state.bits)
                assert getattr(controller, "bits") == state.bits  # noqa: B009 - no part of the protocol
                optimizer.step()
                state.step(loss)
            state.close()
        return widths

    first, second = run_ranks(rank_main)
    assert first == second
    assert set(first) == set(SPECS)
    assert len(set(first["linear-ramp:decisions=5"])) == 4
