"""Seeds as a function of (run, iteration, stream), never of state."""

import numbers

_MASK = (1 << 64) - 1


def check_seed(seed: object) -> int:
    """The seed as Python's own integer: NumPy's do not take 64 bits without a sign.

    Raises:
        ValueError: it is no integer of at most 64 bits, with a sign or without.
    """
    if not isinstance(seed, numbers.Integral) or not -(2**63) <= int(seed) < 2**64:
        raise ValueError(f"seed {seed!r} must be an integer of at most 64 bits")
    return int(seed)


def stream_seed(run_seed: int, iteration: int, stream: int) -> int:
    """Derive the 64-bit seed of one iteration of one stream of random numbers, as a signed integer.

    Streams 0..W−1 are the ranks' pushes and W is the pull.
    """
    seed = mixed(run_seed, iteration, stream)
    return seed - (1 << 64) if seed >> 63 else seed


def mixed(*values: int) -> int:
    """64 bits that depend on all values and on their order.

    Each is mixed in through the finalizer of SplitMix64 (Steele et al., 2014), so that neighbouring values give
    unrelated results.
    """
    result = 0
    for value in values:
        result = _splitmix64((result ^ (int(value) & _MASK)) & _MASK)
    return result


def _splitmix64(x: int) -> int:
    x = (x + 0x9E3779B97F4A7C15) & _MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return x ^ (x >> 31)
