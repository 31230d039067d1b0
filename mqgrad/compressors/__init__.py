"""Ways in which gradients travel and are averaged, by name."""

from .base import Compressor
from .dgc import DGC
from .ecq import ECQSGD
from .gravac import GraVAC
from .message_checks import CorruptPayload
from .minmax import MinMax
from .onebit import OneBit
from .onebit_adam import OneBitAdam
from .plain import FP16, NoCommunication
from .powersgd import PowerSGD
from .quantized import QSGD, Quantized
from .registry import DEFAULT_COMPRESSOR, compressor_names, make_compressor
from .rotated import Rotated
from .sketched_sgd import SketchedSGD
from .smoothness import Smoothness
from .terngrad import TernGrad
from .top_k import TopK

__all__ = [
    "DEFAULT_COMPRESSOR",
    "DGC",
    "ECQSGD",
    "FP16",
    "QSGD",
    "Compressor",
    "CorruptPayload",
    "GraVAC",
    "MinMax",
    "NoCommunication",
    "OneBit",
    "OneBitAdam",
    "PowerSGD",
    "Quantized",
    "Rotated",
    "SketchedSGD",
    "Smoothness",
    "TernGrad",
    "TopK",
    "compressor_names",
    "make_compressor",
]
