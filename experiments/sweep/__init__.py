"""The runs of a comparison: the grid, the processes that fill it, and the rows of results."""
