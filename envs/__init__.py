"""The Gymnasium environment in which bit-selection policies are trained. Importing it registers the id."""

import gymnasium

from .bit_width import BitWidthEnv
from .settings import BitWidthSettings

__all__ = ["ENV_ID", "BitWidthEnv", "BitWidthSettings"]

ENV_ID = "mqgrad/BitWidth-v0"

# nondeterministic: measured seconds never repeat. Under a ModelClock, a seed does give one trajectory.
gymnasium.register(ENV_ID, entry_point="mqgrad.envs.bit_width:BitWidthEnv", nondeterministic=True)
