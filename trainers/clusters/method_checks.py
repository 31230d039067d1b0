"""Whether a training method goes with the rest of a run, found out before a rank hears of it."""

import warnings

import torch

from mqgrad.compressors import Compressor
from mqgrad.hook.param_groups import brings_momentum, has_momentum

from ..link import LinkEmulation
from ..methods import DDP, BackupWorkers, PlainDDP, TrainingMethod, has_width
from ..workloads.workload import Workload
from .clock import ModelClock
from .cluster import ControllerSpec


def check_method(
    name: str,
    method: TrainingMethod,
    *,
    world_size: int,
    controller: ControllerSpec | None,
    clock: ModelClock | None,
    link: LinkEmulation | None,
) -> None:
    """Raises ValueError, naming the method and the remedy, if it has no width for the controller, lacks one that it
    needs, has too few ranks, needs measured seconds, or cannot be paced on the link."""
    if controller is not None and not has_width(name):
        raise ValueError(
            f"method {name!r} has no width for a controller to decide: leave the controller out, or take method 'ddp'"
        )
    if isinstance(method, DDP) and method.period_rule and controller is None:
        raise ValueError(f"method {name!r}: a period rule decides where a controller does: give one")
    if isinstance(method, BackupWorkers):
        method.check_world_size(world_size)
    if clock is not None and not _waits_in_each_iteration(method):
        raise ValueError(
            f"method {name!r} needs measured seconds, a cluster without a clock: the model of seconds is of "
            "iterations that each wait for what they send"
        )
    if controller is not None and clock is not None:
        raise ValueError("a controller decides on measured seconds: use it on a cluster without a clock")
    if link is not None and clock is None and not method.can_be_paced:
        raise ValueError(
            f"method {name!r} cannot be paced on an emulated link ({link}): take a link that the kernel shapes "
            "(mqgrad netlab), or a compressor of ours"
        )


def warn_of_momentum(workload: Workload, compressor: Compressor, method: TrainingMethod) -> None:
    """Here, as what a worker warns of goes to its log: both the compressor and the workload's optimizer have one."""
    if not brings_momentum(compressor) or not isinstance(method, DDP) or method.is_local:
        return
    with torch.random.fork_rng(devices=[]):
        optimizer = workload.build_optimizer(workload.build_model())
    if has_momentum(optimizer):
        warnings.warn(
            f"compressor {compressor!r} takes a momentum of the gradients by itself, and the optimizer of "
            f"{workload.name}, {type(optimizer).__name__}, takes another one of that: give the workload SGD without "
            "(optimizer=sgd, momentum=0)",
            RuntimeWarning,
            stacklevel=4,  # whoever has called reset
        )


def _waits_in_each_iteration(method: TrainingMethod) -> bool:
    return isinstance(method, PlainDDP) or (isinstance(method, DDP) and not method.is_local)
