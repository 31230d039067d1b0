"""Compressors by name, as the command line and the workers of a cluster take them."""

from typing import Any

from ..spec import build_named
from .base import Compressor
from .dgc import DGC
from .ecq import ECQSGD
from .gravac import GraVAC
from .minmax import MinMax
from .onebit import OneBit
from .onebit_adam import OneBitAdam
from .plain import FP16, NoCommunication
from .powersgd import PowerSGD
from .quantized import QSGD, Quantized
from .rotated import Rotated
from .sketched_sgd import SketchedSGD
from .smoothness import Smoothness
from .terngrad import TernGrad
from .top_k import TopK

_COMPRESSORS: dict[str, type[Any]] = {
    "dgc": DGC,
    "ecq-sgd": ECQSGD,
    "fp16": FP16,
    "gravac": GraVAC,
    "minmax": MinMax,
    "none": NoCommunication,
    "onebit": OneBit,
    "onebit-adam": OneBitAdam,
    "powersgd": PowerSGD,
    "qsgd": QSGD,
    "quantized": Quantized,
    "rotation": Rotated,
    "sketched-sgd": SketchedSGD,
    "smoothness": Smoothness,
    "terngrad": TernGrad,
    "top-k": TopK,
}

DEFAULT_COMPRESSOR = "quantized"


def compressor_names() -> tuple[str, ...]:
    """Names that :func:`make_compressor` knows."""
    return tuple(_COMPRESSORS)


def make_compressor(spec: str = DEFAULT_COMPRESSOR) -> Compressor:
    """Build a compressor from its name and arguments: ``quantized``, ``qsgd:bucket_size=128``, ``powersgd:rank=2``.

    The arguments are those of the class.

    Raises:
        ValueError: for an unknown name or argument, listing the known ones; a wrong value.
    """
    compressor: Compressor = build_named("compressor", _COMPRESSORS, spec)
    return compressor
