"""What any schedule of one width over time can save."""

import math
from collections.abc import Sequence


def saving_ceiling_bits(norms_sq: Sequence[float], weights: Sequence[float] | None = None) -> float:
    """Most bits per element that a time-only schedule saves over a fixed width at equal quantization error.

    Quantization error goes as ‖g‖²·4^(−b). The best schedule follows log2‖g_n‖ and equalises the error, a fixed
    width has the error of the mean, so they differ by ½·log2(AM/GM) of the squared norms: 0.55 bit for an
    exponential decay of the norm by 10. To be printed beside any saving of a controller.

    Args:
        norms_sq: squared gradient norms over a run, all of them positive.
        weights: iterations that each of them stands for; None for as many each.

    Raises:
        ValueError: the run is empty, or a norm is zero, negative or not finite; weights that are not as many, or not
            positive.
    """
    wrong = [value for value in norms_sq if not (math.isfinite(value) and value > 0)]
    if wrong or not norms_sq:
        raise ValueError(f"squared gradient norms must be positive and finite, got {wrong[:3] or 'none'}")
    weights = [1.0] * len(norms_sq) if weights is None else weights
    if len(weights) != len(norms_sq) or not all(0 < weight < math.inf for weight in weights):
        raise ValueError(f"{len(norms_sq)} norms need as many positive weights, got {list(weights)[:3]}, …")
    logs, total = [math.log2(value) for value in norms_sq], math.fsum(weights)
    highest = max(logs)  # the mean is taken relative to it, so that no norm overflows
    mean = math.fsum(w * 2 ** (log - highest) for w, log in zip(weights, logs, strict=True)) / total
    return 0.5 * (
        highest + math.log2(mean) - math.fsum(w * log for w, log in zip(weights, logs, strict=True)) / total
    )
