"""Ways in which gradients travel and are averaged, by name."""

from .base import Compressor
from .message_checks import CorruptPayload
from .plain import NoCommunication
from .quantized import QSGD, Quantized
from .registry import DEFAULT_COMPRESSOR, compressor_names, make_compressor
from .smoothness import Smoothness

__all__ = [
    "DEFAULT_COMPRESSOR",
    "QSGD",
    "Compressor",
    "CorruptPayload",
    "NoCommunication",
    "Quantized",
    "Smoothness",
    "compressor_names",
    "make_compressor",
]
