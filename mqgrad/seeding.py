"""Seeds as a function of (run, iteration, stream), never of state."""

_MASK = (1 << 64) - 1


def stream_seed(run_seed: int, iteration: int, stream: int) -> int:
    """Derive the 64-bit seed of one iteration of one stream of random numbers, as a signed integer.

    Streams 0..W−1 are the ranks' pushes and W is the pull. Each argument is mixed in through the finalizer of
    SplitMix64 (Steele et al., 2014), so that neighbouring arguments give unrelated seeds.
    """
    seed = 0
    for value in (run_seed, iteration, stream):
        seed = _splitmix64((seed ^ (value & _MASK)) & _MASK)
    return seed - (1 << 64) if seed >> 63 else seed


def _splitmix64(x: int) -> int:
    x = (x + 0x9E3779B97F4A7C15) & _MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return x ^ (x >> 31)
