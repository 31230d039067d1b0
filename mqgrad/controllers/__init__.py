"""Rules that choose the bit width."""

from .accordion import Accordion
from .authors import MQGradAuthors
from .base import Controller
from .ceiling import saving_ceiling_bits
from .dq_sgd import DQSGD
from .federated import AdaQuantFL, DAdaQuant, FedDQ
from .fixed import FixedBits
from .goodput import Goodput
from .gravac import GraVAC
from .l_greco import LGreCo
from .ramps import BudgetRamp, LinearRamp, RandomRamp
from .registry import controller_names, make_controller
from .smoothness_layers import SmoothnessLayers

__all__ = [
    "DQSGD",
    "Accordion",
    "AdaQuantFL",
    "BudgetRamp",
    "Controller",
    "DAdaQuant",
    "FedDQ",
    "FixedBits",
    "Goodput",
    "GraVAC",
    "LGreCo",
    "LinearRamp",
    "MQGradAuthors",
    "RandomRamp",
    "SmoothnessLayers",
    "controller_names",
    "make_controller",
    "saving_ceiling_bits",
]
