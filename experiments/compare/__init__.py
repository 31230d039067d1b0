"""``mqgrad compare``: what it is told, the grids that have names, and its progress."""
