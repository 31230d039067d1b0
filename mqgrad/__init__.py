"""Adaptive gradient quantization for distributed training."""

import pkgutil

# With the folder of a checkout first on the path (`python -c`, `python -m`), this file is ./mqgrad/__init__.py, whose
# folder holds no `envs`, `trainers`, ...: let those come from the installed package.
__path__ = pkgutil.extend_path(__path__, __name__)

from .codecs.quantization import QuantizedTensor, quantize
from .compressors import (
    QSGD,
    Compressor,
    CorruptPayload,
    Quantized,
    compressor_names,
    make_compressor,
)
from .controllers import DQSGD, Controller, FixedBits, Goodput, make_controller
from .controllers.period_rules import AdaComm, DelayRatio, PeriodRule
from .hook.agreement import RankDisagreement
from .hook.comm_hook import compression_hook
from .hook.second_moment import FrozenSecondMoment
from .hook.state import CompressionState
from .policies.policy import FrozenPolicy, PolicyFileError, load_policy
from .statistics.interval import IntervalStatistics
from .widths import WIDTHS

__all__ = [
    "DQSGD",
    "QSGD",
    "WIDTHS",
    "AdaComm",
    "CompressionState",
    "Compressor",
    "Controller",
    "CorruptPayload",
    "DelayRatio",
    "FixedBits",
    "FrozenPolicy",
    "FrozenSecondMoment",
    "Goodput",
    "IntervalStatistics",
    "PeriodRule",
    "PolicyFileError",
    "Quantized",
    "QuantizedTensor",
    "RankDisagreement",
    "compression_hook",
    "compressor_names",
    "load_policy",
    "make_compressor",
    "make_controller",
    "quantize",
]
