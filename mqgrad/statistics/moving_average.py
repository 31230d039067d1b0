"""The exponentially weighted moving average, of everything here that is smoothed."""


def ewma(old: float | None, new: float, keep: float) -> float:
    """Moving average with the share ``keep`` of the old value; the first value starts it."""
    return new if old is None else keep * old + (1 - keep) * new
