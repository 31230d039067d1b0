"""The network of a Stable-Baselines3 policy as plain layers."""

import torch
from gymnasium import spaces
from stable_baselines3.common.policies import ActorCriticPolicy, BasePolicy
from stable_baselines3.common.torch_layers import FlattenExtractor
from stable_baselines3.dqn.policies import DQNPolicy, QNetwork
from torch import nn

from mqgrad.policies.policy_network import Layer

from .sarsa import SarsaPolicy

_ACTIVATIONS: dict[type[nn.Module], str] = {nn.Tanh: "tanh", nn.ReLU: "relu"}


def network_layers(policy: BasePolicy) -> tuple[list[Layer], str]:
    """The linear layers from observation to action values or logits, and the activation between them.

    Raises:
        ValueError: for a network that is not a plain multilayer perceptron of one activation.
    """
    if not isinstance(policy.action_space, spaces.Discrete):
        raise ValueError(f"only discrete actions can be exported, not {policy.action_space}")
    modules = [module for part in _actor_parts(policy) for module in _leaves(part)]
    linear = [module for module in modules if isinstance(module, nn.Linear)]
    between = [module for module in modules if not isinstance(module, nn.Linear)]
    kinds = {type(module) for module in between}
    if len(between) != len(linear) - 1 or len(kinds) > 1 or not kinds <= set(_ACTIVATIONS):
        raise ValueError(f"only a tanh or relu perceptron can be exported, not {modules}")
    layers = [
        (
            m.weight.detach().cpu().clone(),
            torch.zeros(m.out_features) if m.bias is None else m.bias.detach().cpu().clone(),
        )
        for m in linear
    ]
    return layers, _ACTIVATIONS[kinds.pop()] if kinds else "tanh"


def _actor_parts(policy: BasePolicy) -> list[nn.Module]:
    extractor = getattr(policy, "features_extractor", None) or getattr(
        getattr(policy, "q_net", None), "features_extractor", None
    )
    if extractor is not None and type(extractor) is not FlattenExtractor:
        raise ValueError(f"only flat observations can be exported, not those of a {type(extractor).__name__}")
    if isinstance(policy, SarsaPolicy):
        return [policy.net]
    # Classes derived from these may compute otherwise with the same layers, as a dueling network does.
    if type(policy) is DQNPolicy and type(policy.q_net) is QNetwork:
        return [policy.q_net.q_net]
    if type(policy) is ActorCriticPolicy:
        return [policy.mlp_extractor.policy_net, policy.action_net]
    raise ValueError(
        f"a {type(policy).__name__} cannot be exported; train DQN, PPO or A2C with MlpPolicy, or sarsa"
    )


def _leaves(module: nn.Module) -> list[nn.Module]:
    children = list(module.children())
    if not children:
        return [] if isinstance(module, (nn.Sequential, nn.Identity, nn.Flatten)) else [module]
    return [leaf for child in children for leaf in _leaves(child)]
