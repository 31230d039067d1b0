"""Figures as PNG."""

import io

from matplotlib.figure import Figure


def png_bytes(figure: Figure, dpi: int = 100) -> bytes:
    """The figure as a PNG file's content."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=dpi)
    return buffer.getvalue()
