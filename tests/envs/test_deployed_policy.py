"""What a deployed policy sees and does is what its agent saw and did in the environment."""

import numpy as np
import torch
from toy_cluster import CLOCK, ToyCluster

from mqgrad.envs import BitWidthEnv
from mqgrad.policies.policy import FrozenPolicy
from mqgrad.trainers import Simulated


def test_a_frozen_policy_sees_and_does_what_the_agent_would(toy: ToyCluster) -> None:
    """The environment's observation and the deployed controller's are the same vector."""
    env = BitWidthEnv(cluster=toy, budget_seconds=1.0)
    schema = env.settings.schema
    weight, bias = torch.zeros(len(schema.widths), schema.size), torch.zeros(len(schema.widths))
    weight[0, -2], weight[6, -1], bias[5] = 1.0, 1.0, 0.3  # moved by the width in use and by progress
    policy = FrozenPolicy(schema=schema, layers=[(weight, bias)], budget_seconds=1.0, falls_back=False)
    other = ToyCluster()
    observation, _ = env.reset(seed=3)
    other.reset(toy.resets[-1][0])
    bits = policy.decide(other.run(2, bits=4))
    done, seen = False, set()
    while not done:
        observation, _, _, done, info = env.step(np.int64(policy.act(observation)))
        assert info["bits"] == bits
        seen.add(bits)
        bits = policy.decide(other.run(5, bits=bits))
    assert seen == {1, 8, 16}


class Recording(FrozenPolicy):
    """Remembers what it observes."""

    def act(self, observation: np.ndarray) -> int:
        _OBSERVED.append(observation)
        return super().act(observation)


_OBSERVED: list[np.ndarray] = []  # each rank decides with a copy of the policy


def test_the_first_decision_sees_what_the_first_step_of_an_episode_saw() -> None:
    arguments = {"workload": "digits-mlp", "clock": CLOCK, "interval": 3, "budget_seconds": 0.5}
    env = BitWidthEnv(simulated=True, **arguments)
    schema, settings = env.settings.schema, env.settings
    layer = torch.randn(len(schema.widths), schema.size, generator=torch.Generator().manual_seed(0))
    policy = Recording(
        schema=schema,
        layers=[(layer, torch.zeros(len(schema.widths)))],
        interval=settings.interval,
        opening=settings.opening,
        initial_bits=settings.first_bits,
        budget_seconds=settings.budget_seconds,
        falls_back=False,
    )
    trained, infos = [], []
    observation, info = env.reset(seed=3)
    for _ in range(3):
        trained.append(observation)
        observation, _, _, _, info = env.step(np.int64(policy.act(observation)))
        infos.append(info)
    training_seed = int(np.random.default_rng(3).integers(2**31))
    env.close()
    _OBSERVED.clear()
    with Simulated("digits-mlp", clock=CLOCK) as cluster:
        cluster.reset(training_seed, controller=policy)
        assert [cluster.run(n).bits for n in (2, 3, 3, 3)] == [4, *(info["bits"] for info in infos)]
    deployed = _OBSERVED[:6:2]  # of two ranks
    np.testing.assert_array_equal(deployed[0], trained[0])
    for name in ("drops", "drop", "noise", "update exponent", "efficiencies", "width"):
        entry = schema.at(name)
        np.testing.assert_array_equal(
            [seen[entry] for seen in deployed], [seen[entry] for seen in trained], name
        )
    np.testing.assert_allclose(deployed, trained, atol=0.15)  # later ones count the bytes of deciding
