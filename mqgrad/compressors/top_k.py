"""Top-k: each rank's largest elements with their indices, and a memory of the others."""

import dataclasses

from .base import BucketWork
from .parameter_memory import ParameterMemory
from .sparsified import Accumulated, Sparsified


@dataclasses.dataclass(kw_only=True)
class TopK(Sparsified):
    """Sparsified SGD with memory (Aji and Heafield, EMNLP 2017; Stich, Cordonnier and Jaggi, NeurIPS 2018)."""

    state_fields = ("memory",)
    error_feedback: bool = True
    """Keep what was not sent and add it to the next gradient: one fp32 copy of the model."""
    memory: ParameterMemory = dataclasses.field(init=False, repr=False, default_factory=ParameterMemory)
    """State: of each rank's own gradient."""

    @property
    def num_residuals(self) -> int:
        return len(self.memory)

    def accumulate(self, work: BucketWork, world_size: int) -> Accumulated:
        """Gradient and memory."""
        flat = work.layout.pack(work.gradients)
        if not self.error_feedback:
            return Accumulated(flat, ())
        memory = self.memory.flat(work.layout)
        flat += memory
        return Accumulated(flat, ((flat, memory),))
