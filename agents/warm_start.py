"""Begin with a network that imitates the goodput rule, so that few samples are enough to improve on it."""

import numpy as np
import numpy.typing as npt
import torch
from gymnasium import spaces
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.dqn.policies import DQNPolicy

from mqgrad.codecs.quantization_noise import code_noise
from mqgrad.codecs.rotation import FEW_BITS
from mqgrad.controllers.goodput import within_reach
from mqgrad.policies.observation import ObservationSchema
from mqgrad.statistics.efficiency import UNPAID, log_efficiency
from mqgrad.statistics.step_times import optimistic_seconds

Array = npt.NDArray[np.float64]

TYPICAL_REWARD = 0.3  # of one step, as TimePrice scales it
STEPS, BATCH_SIZE = 2500, 256  # of the imitation


def progress_and_seconds(
    observations: Array, schema: ObservationSchema, relative_bytes: float = 1.0
) -> tuple[Array, Array]:
    """Progress and seconds of an iteration at every width, as the goodput rule expects them.

    Of efficiency(b) ÷ seconds(b), the numerator and, in units of the fixed seconds, the denominator.

    Args:
        observations: [N, schema.size], of kind ``full``.
        relative_bytes: as of :class:`mqgrad.codecs.quantization_noise.Coding`: what is observed is the price of bits
            that are coded.

    Returns:
        progress and seconds, [N, widths] each.
    """
    slope, deviation = (
        2.0 ** observations[:, schema.at(name)] / 32 / relative_bytes for name in ("bytes", "bytes deviation")
    )
    coding = observations[:, schema.at("coding")]
    in_use = 2.0 ** (5 * observations[:, schema.at("width")])
    progress = np.exp(observations[:, schema.at("efficiencies")])
    widths, fixed = np.array(schema.widths), np.array(1.0)
    return progress, optimistic_seconds(widths, in_use, fixed, slope, deviation, coding, relative_bytes)


def expected_advantage(observations: Array, schema: ObservationSchema, relative_bytes: float = 1.0) -> Array:
    """What the rule expects an action's priced reward to be, [N, widths]: 0 for its choice, less for others.

    With time priced at the best width's progress per second, an interval is worth its progress less the
    price of its seconds; in units of the best width's progress. What the rule does not reach from the width in use
    counts as an interval that gains nothing, or worse.
    """
    progress, seconds = progress_and_seconds(observations, schema, relative_bytes)
    reached = _reached(observations, schema)
    best = np.where(reached, progress / seconds, 0.0).argmax(axis=1)[:, None]
    gain = progress / np.take_along_axis(progress, best, axis=1)
    cost = seconds / np.take_along_axis(seconds, best, axis=1)
    advantage = np.where(reached, gain - cost, np.minimum(gain - cost, -1.0))
    return np.clip(advantage, -10.0, 0.0)


def rule_action(
    observation: npt.NDArray[np.floating], schema: ObservationSchema, relative_bytes: float = 1.0
) -> int:
    """The rule's choice, as an index of ``schema.widths``, from one ``full`` observation [schema.size]; see
    :func:`progress_and_seconds`."""
    return int(expected_advantage(observation[None].astype(np.float64), schema, relative_bytes)[0].argmax())


def _reached(observations: Array, schema: ObservationSchema) -> npt.NDArray[np.bool_]:
    """Whether the rule may take a width after the one in use, [N, widths]."""
    widths = schema.widths
    table = np.array([[bits in within_reach(widths, now) for bits in widths] for now in widths])
    distances = np.abs(np.log2(widths) - 5 * observations[:, schema.at("width")])
    return table[distances.argmin(axis=1)]


def imagined_observations(schema: ObservationSchema, count: int, rng: np.random.Generator) -> Array:
    """Observations [count, schema.size] of runs on any link in any phase, without running one.

    Noise over signal and the peak energy that all quantization noises follow from are drawn over decades.
    """
    observations, column = rng.normal(0.0, 0.05, (count, schema.size)), (count, 1)
    part = {entry.name: observations[:, schema.at(entry.name)] for entry in schema.entries}  # views
    part["drop"][:] = rng.uniform(-0.5, 3.0, column)
    part["bytes"][:] = rng.uniform(-8.0, 8.0, column)
    part["bytes deviation"][:] = part["bytes"] + rng.uniform(-4.0, 1.0, column)
    part["fixed seconds"][:] = rng.uniform(-4.0, 0.5, column)
    part["coding"][:] = 10.0 ** rng.uniform(-3.0, 0.0, column)
    part["noise"][:] = rng.uniform(0.0, 1.2, column)
    part["update exponent"][:] = rng.uniform(0.0, 1.0, column)
    part["efficiencies"][:] = _imagined_efficiencies(part["update exponent"], schema, rng)
    part["width"][:] = np.log2(rng.choice(schema.widths, column)) / 5
    part["spent"][:] = rng.uniform(0.0, 1.0, column)
    return np.clip(observations, *schema.bounds())


def _imagined_efficiencies(
    update_exponents: Array, schema: ObservationSchema, rng: np.random.Generator
) -> Array:
    """ln efficiency [N, widths] for update exponents [N, 1]: half of the runs rotate few bits, half have feedback.

    The noise of each code, relative to the gradient, is drawn over decades: how much of it is left in a mean depends
    on the ranks, whether the mean is coded again, and how peaked the gradient is (a Gaussian's peak energy is 9.6
    times its squared norm).
    """
    count = len(update_exponents)
    noises_2n = np.array(
        [[code_noise(b, 1.0, 9.6, rotated=r) for b in schema.widths] for r in ((), FEW_BITS)]
    )
    scales = 10.0 ** rng.uniform(-1.5, 1.0, (count, 1))
    unpaid = np.where(rng.integers(2, size=(count, 1)), UNPAID, 1.0)
    return log_efficiency(scales * noises_2n[rng.integers(2, size=count)], update_exponents, unpaid)


def imitate_goodput(
    model: BaseAlgorithm, schema: ObservationSchema, *, relative_bytes: float = 1.0, seed: int = 0
) -> None:
    """Train the network of a DQN, PPO or A2C model to decide as the goodput rule does; seconds, no environment.

    Q values are fitted to the expected advantages, so that learning goes on from values of the right size;
    action logits by cross-entropy with the rule's choice.

    Args:
        relative_bytes: as of :func:`progress_and_seconds`.

    Raises:
        ValueError: for observations that do not hold what the rule needs, actions that are not widths, or another
            kind of network.
    """
    if schema.kind != "full":
        raise ValueError(f'warm_start="goodput" needs observation="full", got {schema.kind!r}')
    if not isinstance(model.action_space, spaces.Discrete) or model.action_space.n != len(schema.widths):
        raise ValueError(
            f'warm_start="goodput" needs action="absolute", one action for each of the {len(schema.widths)} widths, '
            f"got {model.action_space}"
        )
    rng = np.random.default_rng(seed)
    optimizer = torch.optim.Adam(model.policy.parameters(), lr=2e-3)
    for step in range(STEPS):
        optimizer.param_groups[0]["lr"] = 2e-3 * (1 - step / STEPS)
        observations = imagined_observations(schema, BATCH_SIZE, rng)
        target = torch.as_tensor(
            expected_advantage(observations, schema, relative_bytes), dtype=torch.float32
        )
        loss = _imitation_loss(model, torch.as_tensor(observations, dtype=torch.float32), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    if isinstance(model.policy, DQNPolicy):
        model.policy.q_net_target.load_state_dict(model.policy.q_net.state_dict())


def _imitation_loss(model: BaseAlgorithm, observations: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    policy = model.policy
    if isinstance(policy, DQNPolicy):
        return torch.nn.functional.smooth_l1_loss(
            policy.q_net(observations), TYPICAL_REWARD * target, beta=0.1
        )
    if isinstance(policy, ActorCriticPolicy):
        log_odds = policy.get_distribution(observations).distribution.logits  # type: ignore[union-attr]
        # Soft targets: neighbours of the best width stay likely, and hence explored.
        return torch.nn.functional.cross_entropy(log_odds, torch.softmax(target / 0.1, dim=1))
    raise ValueError(f"a {type(policy).__name__} cannot be warm-started; choose dqn, ppo or a2c")
