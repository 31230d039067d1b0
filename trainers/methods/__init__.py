"""Ways of training W replicas together, by name."""

from .averaging import NoSync
from .backup import BackupWorkers
from .base import RankInterval, Setup, TrainingMethod
from .hook import DDP
from .overlap import OverlapLocalSGD
from .plain_ddp import PlainDDP
from .registry import DEFAULT_METHOD, has_width, make_method, method_names

__all__ = [
    "DDP",
    "DEFAULT_METHOD",
    "BackupWorkers",
    "NoSync",
    "OverlapLocalSGD",
    "PlainDDP",
    "RankInterval",
    "Setup",
    "TrainingMethod",
    "has_width",
    "make_method",
    "method_names",
]
