"""Ways in which gradients travel and are averaged, by name."""

from .base import Compressor
from .ecq import ECQSGD
from .minmax import MinMax
from .onebit import OneBit
from .plain import FP16, NoCommunication
from .powersgd import PowerSGD
from .quantized import QSGD, Quantized
from .registry import DEFAULT_COMPRESSOR, compressor_names, make_compressor
from .terngrad import TernGrad

__all__ = [
    "DEFAULT_COMPRESSOR",
    "ECQSGD",
    "FP16",
    "QSGD",
    "Compressor",
    "MinMax",
    "NoCommunication",
    "OneBit",
    "PowerSGD",
    "Quantized",
    "TernGrad",
    "compressor_names",
    "make_compressor",
]
