"""What a script's optimizer tells of itself: the learning rate of each parameter, and whether it has a momentum."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, cast

import torch


class HasParamGroups(Protocol):
    """A ``torch.optim.Optimizer``, or what stands for several: their groups, one behind the other."""

    param_groups: list[dict[str, Any]]


_SHARED = "ZeroRedundancyOptimizer"


def check_optimizer(optimizer: object, *, in_rounds: bool) -> None:
    """Check what a script gives as its optimizer, or as none.

    Raises:
        TypeError: it is no :class:`HasParamGroups`, whose groups have parameters, and rates that are numbers, if any.
        ValueError: ranks step alone, and it has each step a share of the parameters for all.
    """
    if optimizer is None:
        return
    # By name: torch has it only where it was built with distributed.
    if in_rounds and any(kind.__name__ == _SHARED for kind in type(optimizer).__mro__):
        raise ValueError(
            f"optimizer is a {type(optimizer).__name__}, with which each parameter follows the gradient of one rank "
            "alone in rounds: take an optimizer of its own on every rank, or no rounds (period=1, no period_rule)"
        )
    groups = getattr(optimizer, "param_groups", None)
    if not isinstance(groups, Sequence) or not all(map(_is_group, groups)):
        raise TypeError(
            f"optimizer is of type {type(optimizer).__name__}, and has no param_groups with 'params' and a number as "
            "'lr': give the torch.optim.Optimizer that steps the model's parameters, or leave it out"
        )


def has_momentum(optimizer: HasParamGroups | None) -> bool:
    """Whether a script's optimizer steps by a mean of past gradients, as SGD with momentum does, and Adam."""
    groups = [] if optimizer is None else optimizer.param_groups
    return any(group.get("momentum") or "betas" in group for group in groups)


def brings_momentum(compressor: object) -> bool:
    """Whether a compressor takes a momentum of the gradients by itself; someone else's need not tell."""
    return bool(getattr(compressor, "applies_momentum", False))


def _is_group(group: object) -> bool:
    if not isinstance(group, Mapping) or "params" not in group:
        return False
    try:
        _rate(group)
    except (TypeError, ValueError, RuntimeError):  # the last of a tensor of several
        return False
    return True


def groups_of(optimizer: object) -> HasParamGroups | None:
    """An optimizer of someone else's, if rates can be read of it."""
    return cast(HasParamGroups, optimizer) if hasattr(optimizer, "param_groups") else None


def learning_rates(optimizer: HasParamGroups | None, parameters: Sequence[torch.Tensor]) -> list[float]:
    """The learning rate of each parameter now; 1 of all without an optimizer, NaN of what is in no group."""
    if optimizer is None:
        return [1.0] * len(parameters)
    rates: dict[int, float] = {}
    for group in optimizer.param_groups:
        rates |= dict.fromkeys(map(id, group["params"]), _rate(group))  # once: on a GPU it may have to wait
    return [rates.get(id(parameter), math.nan) for parameter in parameters]


def _rate(group: Mapping[str, Any]) -> float:
    """1 where a group has none, as of an optimizer that finds its own; torch may hold it in a tensor."""
    rate = group.get("lr")
    return 1.0 if rate is None else float(rate)
