"""The DDP communication hook."""

import torch
import torch.distributed as dist

from .state import CompressionState


# DDP inspects the annotations and the name of the second parameter, and rejects partials and callable objects.
def compression_hook(state: CompressionState, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Average a gradient bucket in compressed form: ``ddp.register_comm_hook(state, mqgrad.compression_hook)``.

    Raises:
        TypeError: what comes is no bucket of DDP's.
    """
    if not isinstance(bucket, dist.GradBucket):
        raise TypeError(
            f"the hook was given a {type(bucket).__name__}, not a bucket of gradients: with torch.compile leave "
            "torch._dynamo.config.optimize_ddp as it is (not 'python_reducer')"
        )
    return state.reduce_bucket(bucket)
