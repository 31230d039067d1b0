"""What a frozen policy decides."""

import dataclasses
import pickle
from typing import Any

import numpy as np
import pytest
import torch
from intervals import statistics
from policies import decisions, make_policy, make_statistics

from mqgrad.controllers.base import Controller
from mqgrad.policies.observation import ObservationSchema
from mqgrad.policies.policy import FrozenPolicy
from mqgrad.policies.policy_network import Normalization

SIZE = ObservationSchema().size


def test_is_a_controller() -> None:
    assert isinstance(make_policy(), Controller)


def test_policy_watches_what_it_is_shown() -> None:
    assert len(set(decisions(make_policy()))) > 1


def test_ties_go_to_the_first_action() -> None:
    schema = ObservationSchema(kind="loss", widths=(2, 4, 8))
    policy = make_policy(schema=schema, layers=[(torch.zeros(3, 5), torch.zeros(3))], normalization=None)
    assert policy.decide(make_statistics(1.0)) == 2


def test_keep_or_increase_stops_at_the_last_width() -> None:
    schema = ObservationSchema(kind="loss", widths=(2, 4, 8))
    layers = [(torch.zeros(2, 5), torch.tensor([0.0, 1.0]))]
    policy = make_policy(
        schema=schema, layers=layers, normalization=None, action="keep-or-increase", initial_bits=2
    )
    assert [policy.decide(make_statistics(1.0)) for _ in range(4)] == [4, 8, 8, 8]


def one_bit_policy(kind: str = "full", **changes: Any) -> FrozenPolicy:
    """Its network always decides 1 bit."""
    schema = ObservationSchema(kind=kind)
    bias = torch.zeros(len(schema.widths))
    bias[0] = 1.0
    layers = [(torch.zeros(len(bias), schema.size), bias)]
    return make_policy(schema=schema, layers=layers, normalization=None, initial_bits=4, **changes)


def on_a_fast_link(policy: FrozenPolicy, decisions: int, bits: float = 4) -> list[float]:
    """Widths, where 32 bits take less time than others."""
    widths = []
    for _ in range(decisions):
        step = 0.026 if bits == 32 else 0.030
        bits = policy.decide(statistics(bits=bits, step_seconds=step, compute_seconds=0.02))
        widths.append(bits)
    return widths


def test_policies_are_compared_by_identity() -> None:
    one, other = one_bit_policy(), one_bit_policy()
    assert one != other
    assert len({one, other}) == 2


def test_where_32_bits_take_no_longer_they_are_in_force() -> None:
    assert on_a_fast_link(one_bit_policy(), 6) == [1, 8, 32, 32, 32, 32]


def test_without_its_fallback_a_policy_does_what_its_network_decides() -> None:
    assert on_a_fast_link(one_bit_policy(falls_back=False), 6) == [1] * 6


def test_where_no_seconds_are_observed_there_is_no_fallback() -> None:
    assert on_a_fast_link(one_bit_policy("loss"), 6) == [1] * 6


def test_a_restored_policy_knows_that_32_bits_are_faster() -> None:
    first, second = one_bit_policy(), one_bit_policy()
    widths = on_a_fast_link(first, 4)
    second.load_state_dict(first.state_dict())
    assert on_a_fast_link(second, 8, widths[-1]) == on_a_fast_link(first, 8, widths[-1])
    assert second.state_dict() == first.state_dict() != one_bit_policy().state_dict()


def test_state_continues_exactly() -> None:
    first, second = make_policy(action="keep-or-increase"), make_policy(action="keep-or-increase")
    decisions(first)
    second.load_state_dict(first.state_dict())
    assert decisions(second) == decisions(first)


def test_normalization_is_that_of_vec_normalize() -> None:
    vec_env = pytest.importorskip("stable_baselines3.common.vec_env")
    gymnasium = pytest.importorskip("gymnasium")
    venv = vec_env.VecNormalize(vec_env.DummyVecEnv([lambda: gymnasium.make("CartPole-v1")]), clip_obs=1.5)
    rng = np.random.default_rng(0)
    venv.obs_rms.update(rng.normal(3, 2, size=(100, 4)))
    normalization = Normalization(
        mean=venv.obs_rms.mean, std=np.sqrt(venv.obs_rms.var + venv.epsilon), clip=venv.clip_obs
    )
    for observation in rng.normal(3, 4, size=(50, 4)).astype(np.float32):
        assert normalization(observation).tolist() == venv.normalize_obs(observation).tolist()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"activation": "gelu"}, "activation 'gelu'"),
        ({"action": "up"}, "action mode 'up'"),
        ({"interval": 0}, "interval 0"),
        ({"opening": 2.0}, r"opening 2\.0"),
        ({"initial_bits": 5}, "5"),
        ({"budget_seconds": float("inf")}, "budget_seconds inf"),
        ({"layers": []}, "0 layers"),
        ({"layers": [(torch.zeros(8, 3), torch.zeros(8))]}, "layer 0"),
        ({"layers": [(torch.zeros(3, SIZE), torch.zeros(3))]}, "3 outputs"),
        ({"layers": [(torch.full((8, SIZE), torch.nan), torch.zeros(8))]}, "not finite"),
        ({"layers": [(torch.zeros(8, SIZE).double(), torch.zeros(8))]}, "float32"),
        ({"normalization": Normalization(mean=np.zeros(2), std=np.ones(2), clip=10.0)}, "normalization mean"),
        ({"normalization": Normalization(mean=np.zeros(SIZE), std=np.zeros(SIZE), clip=10.0)}, "std"),
        ({"provenance": []}, "provenance"),
    ],
)
def test_wrong_fields_are_refused_by_name(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_policy(**changes)


def test_policy_pickles_between_processes() -> None:
    policy = make_policy()
    assert decisions(pickle.loads(pickle.dumps(policy))) == decisions(make_policy())
    assert dataclasses.is_dataclass(policy)


def test_what_a_policy_remembers_by_cannot_be_changed_later() -> None:
    """It was ignored: progress went by the budget that the policy was made with."""
    policy = make_policy(budget_seconds=6.0)
    for name, value in (("budget_seconds", 3600.0), ("initial_bits", 4), ("interval", 20)):
        with pytest.raises(AttributeError, match=f"{name} of a policy is fixed"):
            setattr(policy, name, value)
    policy.falls_back = False
    assert dataclasses.replace(policy, budget_seconds=3600.0).budget_seconds == 3600.0
