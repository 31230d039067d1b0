"""The gradients of a bucket as the vector that is coded."""

import torch

from ..layout import Layout
from .plans import Copies, Plan


class GradientVector:
    """Copies gradients to a float32 vector and back, one chunk at a time.

    While one is copied others are on the wire. Gradients that are not contiguous are copied whole, before and after.

    Args:
        gradients: of any floating dtype, in the order of the layout; overwritten.
    """

    def __init__(self, layout: Layout, plan: Plan, gradients: list[torch.Tensor]) -> None:
        self.flat = torch.empty(layout.numel, dtype=torch.float32, device=gradients[0].device)
        """[numel]; only the chunks that were packed are defined, and zeros behind the last parameter."""
        self.flat[layout.end :].zero_()
        self._vector_pieces = self.flat.split_with_sizes(plan.vector_pieces)
        self._gradients = gradients
        self._flat_gradients = [gradient.reshape(-1) for gradient in gradients]
        self._gradient_pieces = [
            piece
            for gradient, lengths in zip(self._flat_gradients, plan.gradient_pieces, strict=True)
            for piece in gradient.split_with_sizes(lengths)
        ]

    def pack(self, copies: Copies) -> None:
        """Copy a chunk of the gradients to the vector, and continue parameters that end in it."""
        if copies.vector:
            vector, gradients = self._pieces(copies)
            torch._foreach_copy_(vector, gradients)
        to, of = copies.repeated
        if len(to):
            self.flat[to] = self.flat[of]
        if len(copies.zeroed):
            self.flat.index_fill_(0, copies.zeroed, 0.0)

    def unpack(self, copies: Copies) -> None:
        """Copy a chunk back."""
        if copies.vector:
            vector, gradients = self._pieces(copies)
            torch._foreach_copy_(gradients, vector)

    def finish(self) -> None:
        """Give back gradients that are not contiguous, of which there was a copy."""
        for gradient, flat in zip(self._gradients, self._flat_gradients, strict=True):
            if flat.data_ptr() != gradient.data_ptr():
                gradient.copy_(flat.view_as(gradient))

    def _pieces(self, copies: Copies) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """Of the vector, and of the gradients."""
        return (
            [self._vector_pieces[i] for i in copies.vector],
            [self._gradient_pieces[i] for i in copies.gradients],
        )
