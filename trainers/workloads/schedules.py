"""Learning-rate schedules: for runs of unknown length, and one that ends with its run."""

import math

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR


def warmup_constant(optimizer: Optimizer, warmup_iterations: int) -> LambdaLR:
    """Rise linearly to the optimizer's rate, then stay."""
    return LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / max(warmup_iterations, 1)))


def warmup_inverse_sqrt(optimizer: Optimizer, warmup_iterations: int) -> LambdaLR:
    """Rise linearly to the optimizer's rate, then fall as 1/√iteration."""
    warmup = max(warmup_iterations, 1)
    return LambdaLR(optimizer, lambda step: min((step + 1) / warmup, (warmup / (step + 1)) ** 0.5))


def warmup_cosine(optimizer: Optimizer, warmup_iterations: int, decay_iterations: int) -> LambdaLR:
    """Rise linearly towards the optimizer's rate, and fall to 0 in the iteration after so many, as half a cosine does
    (Loshchilov & Hutter, 2017, eq. 5, without restarts); it stays there."""
    warmup = max(warmup_iterations, 1)

    def factor(step: int) -> float:
        fallen = (1 + math.cos(math.pi * min(step / decay_iterations, 1.0))) / 2
        return min(1.0, (step + 1) / warmup) * fallen

    return LambdaLR(optimizer, factor)
