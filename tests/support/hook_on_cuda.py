"""Two ranks on one GPU, over Gloo; torchrun starts them. Not forked: CUDA does not survive that.

torchrun --nproc-per-node 2 tests/support/hook_on_cuda.py same
torchrun --nproc-per-node 2 tests/support/hook_on_cuda.py dies

``same``: fails unless the hook gives the same mean of the same gradients on the GPU as on the CPU, bit by bit.
``dies``: rank 1 leaves; fails unless rank 0 is told so in time.
"""

import itertools
import os
import sys
import time

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import mqgrad

SHAPES = [(300, 70), (70,), (513,), (1,), (40, 3, 3, 3), (1000,)]
WIDTHS: tuple[float, ...] = (32, 16, 8, 5, 4, 3, 2, 1, 1 / 2, 1 / 16)
CASES = [
    *itertools.product(["quantized", "quantized:topology=sharded", "quantized:rounding=nearest"], WIDTHS),
    ("qsgd", 3),
    ("minmax", 4),
]
ITERATIONS = 4


class Given(nn.Module):
    """Its gradient is the input, exactly: what a device computes makes no difference."""

    def __init__(self) -> None:
        super().__init__()
        self.values = nn.ParameterList([torch.zeros(shape) for shape in SHAPES])

    def forward(self, targets: list[Tensor]) -> Tensor:
        return torch.stack([(p * t).sum() for p, t in zip(self.values, targets, strict=True)]).sum()


def targets(iteration: int, device: torch.device) -> list[Tensor]:
    generator = torch.Generator().manual_seed(100 * dist.get_rank() + iteration)
    drawn = [torch.randn(shape, generator=generator) for shape in SHAPES]
    return [(x * x.abs()).to(device) for x in drawn]


def means(device: torch.device, compressor: str, bits: float) -> list[Tensor]:
    """The gradients that the hook leaves, iteration after iteration."""
    model = Given().to(device)
    ddp = DistributedDataParallel(model, bucket_cap_mb=1)
    state = mqgrad.CompressionState(
        mqgrad.FixedBits(bits, interval=2), compressor=compressor, timeout_seconds=20
    )
    ddp.register_comm_hook(state, mqgrad.compression_hook)
    found = []
    for iteration in range(ITERATIONS):
        ddp.zero_grad()
        loss = ddp(targets(iteration, device))
        loss.backward()
        found.append(torch.cat([p.grad.flatten().cpu() for p in model.values if p.grad is not None]))
        state.step(loss)
    state.close()
    return found


def check_same() -> None:
    for compressor, bits in CASES:
        expected = means(torch.device("cpu"), compressor, bits)
        for iteration, (ours, wanted) in enumerate(
            zip(means(gpu(), compressor, bits), expected, strict=True)
        ):
            told = f"{compressor} at {bits} bits, iteration {iteration}: {(ours != wanted).sum()} elements differ"
            assert torch.equal(ours, wanted), told


def check_death() -> None:
    """Rank 1 leaves without a word; what it had to send is waited for in vain."""
    start = time.monotonic()
    told = failure_of_training()
    assert "rank 0" in told, f"rank 0 noticed {told or 'nothing'}"
    assert time.monotonic() - start < 30, "it took too long"
    os._exit(0)  # the group is broken


def failure_of_training() -> str:
    """What rank 0 is told when rank 1 leaves in the sixth iteration."""
    model = DistributedDataParallel(Given().to(gpu()))
    state = mqgrad.CompressionState(mqgrad.FixedBits(4), timeout_seconds=10)
    model.register_comm_hook(state, mqgrad.compression_hook)
    try:
        for iteration in range(20):
            if iteration == 5 and dist.get_rank() == 1:
                os._exit(0)  # torchrun takes no notice
            loss = model(targets(iteration, gpu()))
            loss.backward()
            torch.cuda.synchronize()
            state.step(loss)
    except RuntimeError as error:
        return str(error)
    return ""


def gpu() -> torch.device:
    return torch.device("cuda", 0)


def main() -> None:
    dist.init_process_group("gloo")
    torch.cuda.set_device(gpu())
    {"same": check_same, "dies": check_death}[sys.argv[1]]()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
