"""Ways of training W replicas together, by name."""

from .base import RankInterval, Setup, TrainingMethod
from .registry import DEFAULT_METHOD, make_method, method_names

__all__ = ["DEFAULT_METHOD", "RankInterval", "Setup", "TrainingMethod", "make_method", "method_names"]
