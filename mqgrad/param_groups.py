"""What a script's optimizer tells of itself: the learning rate of each parameter."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import torch


class HasParamGroups(Protocol):
    """A ``torch.optim.Optimizer``, or what stands for several: their groups, one behind the other."""

    param_groups: list[dict[str, Any]]


def check_optimizer(optimizer: object) -> None:
    """Raise ``TypeError`` unless None or :class:`HasParamGroups`, whose groups have parameters, and learning rates
    that are numbers, if any."""
    if optimizer is None:
        return
    groups = getattr(optimizer, "param_groups", None)
    if not isinstance(groups, Sequence) or not all(map(_is_group, groups)):
        raise TypeError(
            f"optimizer is of type {type(optimizer).__name__}, and has no param_groups with 'params' and a number as "
            "'lr': give the torch.optim.Optimizer that steps the model's parameters, or leave it out"
        )


def _is_group(group: object) -> bool:
    if not isinstance(group, Mapping) or "params" not in group:
        return False
    try:
        _rate(group)
    except (TypeError, ValueError, RuntimeError):  # the last of a tensor of several
        return False
    return True


def learning_rates(optimizer: HasParamGroups | None, parameters: Sequence[torch.Tensor]) -> list[float]:
    """The learning rate of each parameter now; 1 of all without an optimizer, NaN of what is in no group."""
    if optimizer is None:
        return [1.0] * len(parameters)
    rates = {id(parameter): _rate(group) for group in optimizer.param_groups for parameter in group["params"]}
    return [rates.get(id(parameter), math.nan) for parameter in parameters]


def _rate(group: Mapping[str, Any]) -> float:
    """1 where a group has none, as of an optimizer that finds its own; torch may hold it in a tensor."""
    rate = group.get("lr")
    return 1.0 if rate is None else float(rate)
