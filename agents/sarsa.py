"""MQGrad's own agent: semi-gradient SARSA with a small Q network (Cui et al., ICTIR 2018)."""

from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from gymnasium import spaces
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.type_aliases import GymEnv, MaybeCallback, PyTorchObs, Schedule
from stable_baselines3.common.utils import safe_mean

from mqgrad.controllers.sarsa import HIDDEN, prefers_next, q_network, sarsa_step

KEEP, INCREASE = 0, 1


class SarsaPolicy(BasePolicy):
    """Q network 5 → 30 tanh → one output per width; the greedy action compares the current width and the next.

    An observation is the losses and, last, the index of the current width, as
    :class:`mqgrad.agents.wrappers.WithWidth` appends it.
    """

    CLIP = 10.0

    def __init__(
        self,
        observation_space: spaces.Box,
        action_space: spaces.Discrete,
        lr_schedule: Schedule,
        *,
        hidden: int = HIDDEN,
        **_: Any,
    ) -> None:
        super().__init__(observation_space, action_space)
        num_losses = observation_space.shape[0] - 1
        self.num_widths = round(float(observation_space.high[-1])) + 1
        self.net = q_network(num_losses, self.num_widths, hidden)
        self.register_buffer("loss_mean", torch.zeros((), dtype=torch.float64))
        self.register_buffer("loss_std", torch.ones((), dtype=torch.float64))
        self.loss_mean: torch.Tensor
        self.loss_std: torch.Tensor

    def q_values(self, observation: torch.Tensor) -> torch.Tensor:
        """Q of every width, [N, num_widths], from observations [N, losses + 1]."""
        losses = (observation[:, :-1].double() - self.loss_mean) / self.loss_std
        return self.net(losses.clamp(-self.CLIP, self.CLIP).float())

    def width_index(self, observation: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
        """Index of the width that ``action`` leads to, [N]; past the last width it stays there."""
        return (observation[:, -1].long() + action).clamp(max=self.num_widths - 1)

    def _predict(self, observation: PyTorchObs, deterministic: bool = False) -> torch.Tensor:
        assert isinstance(observation, torch.Tensor)
        return prefers_next(self.q_values(observation), observation[:, -1].long()).long()


class Sarsa(BaseAlgorithm):
    """The reproduction of the authors' agent, with Stable-Baselines3's interface (which has no SARSA).

    One update per interval, online: Q(s, a) ← Q(s, a) + α·(r + γ·Q(s', a') − Q(s, a)), where a is the width
    that was used, one output of the network each. Exploration probes one bit more with probability ε, and
    only when greedy says keep. Widths never fall.

    Defects of the original, and what is done about them:

    - A probe past the last width is clipped to it. Always, since there is no such output.
    - Unnormalised losses saturate tanh. ``normalize=True`` standardises them with running figures.
    - The last update of an episode bootstrapped beyond it; here the end has value 0.

    Kept, as they are the authors' problem rather than their agent (``preset="authors"`` of the environment): the
    synthetic clock of the reward; the smoothing of the losses, 59 % of which dates from before the action; the
    quantizer without error feedback (``compressor="minmax"``). "Few bits, then many" is built into the actions:
    compare with ``random-ramp``, which has it too and learns nothing.

    Deviation: a probe is not taken back after its interval, as the environment's keep/+1 actions cannot. The
    controller ``mqgrad-authors``, which learns within one run as the paper does, takes it back; both share
    :mod:`mqgrad.controllers.sarsa`.

    Args:
        learning_rate: α.
        gamma: γ, per decision.
        exploration: ε.
    """

    policy_aliases: ClassVar[dict[str, type[BasePolicy]]] = {"MlpPolicy": SarsaPolicy}
    policy: SarsaPolicy

    def __init__(
        self,
        policy: str | type[SarsaPolicy] = "MlpPolicy",
        env: GymEnv | str | None = None,
        learning_rate: float = 0.05,
        gamma: float = 0.9,
        exploration: float = 0.1,
        normalize: bool = True,
        policy_kwargs: dict[str, Any] | None = None,
        tensorboard_log: str | None = None,
        verbose: int = 0,
        seed: int | None = None,
        device: torch.device | str = "cpu",
        _init_setup_model: bool = True,
    ) -> None:
        super().__init__(
            policy,
            env,
            learning_rate,
            policy_kwargs=policy_kwargs,
            tensorboard_log=tensorboard_log,
            verbose=verbose,
            seed=seed,
            device=device,
            supported_action_spaces=(spaces.Discrete,),
        )
        self.gamma = gamma
        self.exploration = exploration
        self.normalize = normalize
        self.losses_seen = 0
        self.loss_sum = 0.0
        self.loss_square_sum = 0.0
        if _init_setup_model:
            self._setup_model()

    def _setup_model(self) -> None:
        self._setup_lr_schedule()
        self.set_random_seed(self.seed)
        self.policy = self.policy_class(
            self.observation_space, self.action_space, self.lr_schedule, **self.policy_kwargs
        ).to(self.device)  # type: ignore[assignment]

    def learn(
        self,
        total_timesteps: int,
        callback: MaybeCallback = None,
        log_interval: int = 1,
        tb_log_name: str = "sarsa",
        reset_num_timesteps: bool = True,
        progress_bar: bool = False,
    ) -> "Sarsa":
        """Learn online from ``total_timesteps`` decisions."""
        total_timesteps, callback = self._setup_learn(
            total_timesteps, callback, reset_num_timesteps, tb_log_name, progress_bar
        )
        callback.on_training_start(locals(), globals())
        assert self.env is not None
        observation = self._last_obs
        assert isinstance(observation, np.ndarray)
        action = self.choose(observation)
        while self.num_timesteps < total_timesteps:
            next_observation, rewards, dones, infos = self.env.step(action)
            assert isinstance(next_observation, np.ndarray)
            self.num_timesteps += 1
            callback.update_locals(locals())
            if not callback.on_step():
                break
            self._update_info_buffer(infos, dones)
            self._update_current_progress_remaining(self.num_timesteps, total_timesteps)
            next_action = self.choose(next_observation)
            error = self.update(observation, action, rewards, next_observation, next_action, dones)
            self.logger.record("train/td_error", error)
            observation = self._last_obs = next_observation
            action = next_action
            if dones[0] and log_interval:
                self._dump_logs()
        callback.on_training_end()
        return self

    def choose(self, observation: npt.NDArray[np.float32]) -> npt.NDArray[np.int64]:
        """Actions int64 [1] for observations [1, losses + 1], exploring."""
        self._see_losses(observation[0, :-1])
        action, _ = self.predict(observation, deterministic=True)
        if action[0] == KEEP and np.random.rand() < self.exploration:
            action = np.array([INCREASE])
        return action

    def update(
        self,
        observation: npt.NDArray[np.float32],
        action: npt.NDArray[np.int64],
        reward: npt.NDArray[np.float32],
        next_observation: npt.NDArray[np.float32],
        next_action: npt.NDArray[np.int64],
        done: npt.NDArray[np.bool_],
    ) -> float:
        """One semi-gradient step for one transition (leading dimension 1); returns the TD error before it."""
        with torch.no_grad():
            bootstrap = 0.0 if done[0] else float(self._q(next_observation, next_action))
        target = float(reward[0]) + self.gamma * bootstrap
        learning_rate = self.lr_schedule(self._current_progress_remaining)
        return sarsa_step(self.policy.net, self._q(observation, action), target, learning_rate)

    def _q(self, observation: npt.NDArray[np.float32], action: npt.NDArray[np.int64]) -> torch.Tensor:
        states = torch.as_tensor(observation)
        index = self.policy.width_index(states, torch.as_tensor(action))
        return self.policy.q_values(states)[0, index[0]]

    def _see_losses(self, losses: npt.NDArray[np.float32]) -> None:
        if not self.normalize or not losses.any():  # zeros stand for losses not yet seen
            return
        self.losses_seen += len(losses)
        self.loss_sum += float(losses.sum())
        self.loss_square_sum += float(np.square(losses, dtype=np.float64).sum())
        mean = self.loss_sum / self.losses_seen
        variance = max(self.loss_square_sum / self.losses_seen - mean**2, 0.0)
        self.policy.loss_mean.fill_(mean)
        self.policy.loss_std.fill_(variance**0.5 or 1.0)

    def _dump_logs(self) -> None:
        if self.ep_info_buffer:
            self.logger.record("rollout/ep_rew_mean", safe_mean([info["r"] for info in self.ep_info_buffer]))
            self.logger.record("rollout/ep_len_mean", safe_mean([info["l"] for info in self.ep_info_buffer]))
        self.logger.dump(step=self.num_timesteps)
