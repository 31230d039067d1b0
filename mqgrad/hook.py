"""The DDP communication hook."""

import torch
import torch.distributed as dist

from .state import CompressionState


# DDP inspects the annotations and the name of the second parameter, and rejects partials and callable objects.
def compression_hook(state: CompressionState, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Average a gradient bucket in compressed form: ``ddp.register_comm_hook(state, mqgrad.compression_hook)``."""
    return state.reduce_bucket(bucket)
