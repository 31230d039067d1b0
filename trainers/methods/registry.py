"""Training methods by name."""

from typing import Any

from mqgrad.spec import build_named

from .averaging import LocalSGD, NoSync, SlowMo
from .backup import BackupWorkers
from .base import TrainingMethod
from .hook import DDP
from .overlap import OverlapLocalSGD
from .plain_ddp import PlainDDP
from .post_local import PostLocalSGD

_METHODS: dict[str, type[Any]] = {
    "backup-workers": BackupWorkers,
    "ddp": DDP,
    "local-sgd": LocalSGD,
    "no-sync": NoSync,
    "overlap-local-sgd": OverlapLocalSGD,
    "plain-ddp": PlainDDP,
    "post-local-sgd": PostLocalSGD,
    "slowmo": SlowMo,
}

DEFAULT_METHOD = "ddp"


def method_names() -> tuple[str, ...]:
    """Names that :func:`make_method` knows."""
    return tuple(_METHODS)


def has_width(method: str) -> bool:
    """Whether gradients go through our hook, at a width that a controller or the caller of an interval decides."""
    return method.partition(":")[0] == DEFAULT_METHOD


def make_method(spec: str = DEFAULT_METHOD) -> TrainingMethod:
    """Build a training method from its name and arguments: ``ddp:period=4``, ``local-sgd``, ``slowmo:beta=0.7``.

    Raises:
        ValueError: for an unknown name or argument, listing the known ones; a wrong value.
    """
    method: TrainingMethod = build_named("method", _METHODS, spec)
    return method
