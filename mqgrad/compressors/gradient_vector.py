"""The gradients of a bucket as the vector that is coded."""

import torch

from mqgrad.cuda_ext import Scattered

from ..layout import Layout


class GradientVector:
    """Gradients where they lie in the vector of a layout. Those that are not contiguous are copied, and copied back.

    Args:
        gradients: of any floating dtype, in the order of the layout; overwritten.
    """

    def __init__(self, layout: Layout, gradients: list[torch.Tensor]) -> None:
        self._gradients = gradients
        self._flat_gradients = [gradient.contiguous().view(-1) for gradient in gradients]
        self._vector = Scattered(self._flat_gradients, list(layout.offsets), layout.numel)

    def part(self, part: slice) -> Scattered:
        """Elements of the vector, to be read and written."""
        return self._vector.part(part)

    def finish(self) -> None:
        """Give back gradients of which there was a copy."""
        for gradient, flat in zip(self._gradients, self._flat_gradients, strict=True):
            if flat.data_ptr() != gradient.data_ptr():
                gradient.copy_(flat.view_as(gradient))
