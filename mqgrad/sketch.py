"""Inner products of gradients that lie on different ranks, from a few hundred numbers each.

The mean that comes back from a quantized all-reduce carries the quantization noise, so the gradient's signal and its
noise between ranks cannot be read off it: at two bits the signal would come out ten times too large.
"""

import torch

from .seeding import stream_seed

SKETCH_SIZE = 256
"""Inner products of x and y have a standard error of about ‖x‖·‖y‖/√SKETCH_SIZE."""


class Sketcher:
    """Count-sketches (Charikar et al. 2002) of parameters' gradients: E⟨sketch(x), sketch(y)⟩ = ⟨x, y⟩.

    The same on all ranks. The random signs are kept, one byte per element.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._signs: dict[int, torch.Tensor] = {}

    def sketch(self, gradient: torch.Tensor, key: int) -> torch.Tensor:
        """Sketch a parameter's gradient.

        Args:
            gradient: float [N].
            key: of the parameter; different ones get independent signs.

        Returns:
            float32 [SKETCH_SIZE]; sketches of different parameters may be added up.
        """
        padded = torch.nn.functional.pad(gradient.float(), (0, -gradient.numel() % SKETCH_SIZE))
        table = padded.view(-1, SKETCH_SIZE)
        return (table * self._signs_of(key, table)).sum(dim=0)

    def _signs_of(self, key: int, table: torch.Tensor) -> torch.Tensor:
        signs = self._signs.get(key)
        if signs is None or signs.shape != table.shape:
            generator = torch.Generator().manual_seed(stream_seed(self._seed, key, table.shape[0]))
            bits = torch.randint(0, 2, table.shape, dtype=torch.int8, generator=generator)
            signs = self._signs[key] = (2 * bits - 1).to(table.device)
        return signs
