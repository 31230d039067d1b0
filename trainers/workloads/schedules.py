"""Learning-rate schedules that make sense when nobody knows how long the run will be."""

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR


def warmup_constant(optimizer: Optimizer, warmup_iterations: int) -> LambdaLR:
    """Rise linearly to the optimizer's rate, then stay."""
    return LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / max(warmup_iterations, 1)))


def warmup_inverse_sqrt(optimizer: Optimizer, warmup_iterations: int) -> LambdaLR:
    """Rise linearly to the optimizer's rate, then fall as 1/√iteration."""
    warmup = max(warmup_iterations, 1)
    return LambdaLR(optimizer, lambda step: min((step + 1) / warmup, (warmup / (step + 1)) ** 0.5))
