"""Train on GPUs through the hook and without it, side by side:

    torchrun --nproc-per-node 2 experiments/benchmarks/cuda_training.py --output cuda-training.json

By default the ranks share the first GPU and talk over Gloo, by way of the CPU and the loopback device: a slow link
beside the GPU. ``--backend nccl`` wants a GPU for each rank (torchrun's ``LOCAL_RANK``).

The model is a Transformer of 25 million parameters on random tokens: it shows what an iteration takes, and that the
replicas stay the same bit by bit, not what a width does to the loss. Settings take turns, ``--repetitions`` times; a
ratio is to plain DDP in the same turn. It needs torch, numpy and the package.
"""

import argparse
import dataclasses
import datetime
import hashlib
import itertools
import os
import statistics
import time
from typing import Any

import script
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import mqgrad

VOCABULARY, DIMENSION, LAYERS, LENGTH = 256, 512, 8, 128
WARM_UPS = 10
PLAIN = "plain DDP"


@dataclasses.dataclass(frozen=True)
class Setting:
    """What averages gradients: a controller by its name, None for plain DDP."""

    controller: str | None = None
    period: int = 1
    compressor: str = "quantized"

    @property
    def name(self) -> str:
        if self.controller is None:
            return PLAIN
        rounds = f", rounds of {self.period}" if self.period > 1 else ""
        compressor = f" of {self.compressor}" if self.compressor != "quantized" else ""
        return f"{self.controller}{compressor}{rounds}"


SETTINGS = [
    Setting(),
    *(Setting(f"fixed:{bits}") for bits in ("32", "16", "8", "4", "2", "1", "1/4")),
    Setting("default"),
    Setting("fixed:4", compressor="qsgd"),
    Setting("fixed:1", period=8),
]


class Model(nn.Module):
    """Predicts the next token."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, DIMENSION)
        layer = nn.TransformerEncoderLayer(
            DIMENSION, 8, 4 * DIMENSION, dropout=0.0, batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
        self.head = nn.Linear(DIMENSION, VOCABULARY)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(LENGTH))

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.layers(self.embedding(tokens), mask=self.mask, is_causal=True))


def loss_of(model: nn.Module, tokens: Tensor) -> Tensor:
    predicted = model(tokens[:, :-1])
    return nn.functional.cross_entropy(predicted.flatten(0, 1), tokens[:, 1:].flatten())


def digest(model: nn.Module) -> str:
    content = hashlib.sha256()
    for parameter in model.parameters():
        content.update(parameter.detach().cpu().numpy().tobytes())
    return content.hexdigest()


def are_same(model: nn.Module, control: dist.ProcessGroup) -> bool:
    """Whether all ranks have the same parameters, bit by bit."""
    digests: list[Any] = [None] * dist.get_world_size(control)
    dist.all_gather_object(digests, digest(model), control)
    return len(set(digests)) == 1


def train(
    setting: Setting, device: torch.device, arguments: argparse.Namespace
) -> tuple[dict[str, Any], nn.Module]:
    """Train a new model; what came of it on this rank, and the model."""
    torch.manual_seed(0)
    ddp = DistributedDataParallel(Model().to(device), device_ids=[device.index])
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.01, momentum=0.9)
    state = register(setting, ddp)
    generator = torch.Generator(device).manual_seed(dist.get_rank())
    shape, loss, start = (arguments.batch, LENGTH + 1), torch.zeros(()), 0.0
    for iteration in range(WARM_UPS + arguments.iterations):
        if iteration == WARM_UPS:
            torch.cuda.synchronize(device)
            start = time.perf_counter()
        tokens = torch.randint(VOCABULARY, shape, generator=generator, device=device)
        loss = step(ddp, optimizer, tokens)
        if state is not None:
            state.step(loss)
    torch.cuda.synchronize(device)
    ms = 1e3 * (time.perf_counter() - start) / arguments.iterations
    return {"setting": setting.name, "ms": ms, "loss": loss.item(), **close(state)}, ddp.module


def step(ddp: nn.Module, optimizer: torch.optim.Optimizer, tokens: Tensor) -> Tensor:
    with torch.autocast(tokens.device.type, torch.bfloat16):
        loss = loss_of(ddp, tokens)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss


def register(setting: Setting, ddp: DistributedDataParallel) -> mqgrad.CompressionState | None:
    if setting.controller is None:
        return None
    controller = mqgrad.make_controller(setting.controller, budget_seconds=5.0)
    state = mqgrad.CompressionState(
        controller, period=setting.period, compressor=setting.compressor, timeout_seconds=60
    )
    ddp.register_comm_hook(state, mqgrad.compression_hook)
    return state


def close(state: mqgrad.CompressionState | None) -> dict[str, Any]:
    if state is None:
        return {}
    state.finish_round()
    totals = dataclasses.asdict(state.totals)
    state.close()
    return {"totals": totals}


def print_table(rows: list[dict[str, Any]]) -> None:
    turns = {row["turn"]: row["ms"] for row in rows if row["setting"] == PLAIN}
    for name in dict.fromkeys(row["setting"] for row in rows):
        own = [row for row in rows if row["setting"] == name]
        ratios = sorted(row["ms"] / turns[row["turn"]] for row in own)
        spread = f"{statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})"
        same = "same" if all(row["same"] for row in own) else "REPLICAS DIFFER"
        ms = statistics.median(row["ms"] for row in own)
        print(f"{name.ljust(26)} {ms:7.2f} ms, / plain DDP {spread}, loss {own[-1]['loss']:.3f}, {same}")


def arguments_of(description: str | None) -> argparse.Namespace:
    parser = script.parser(description)
    parser.add_argument("--output", type=script.output_file, default="cuda-training.json")
    parser.add_argument("--backend", choices=["gloo", "nccl"], default="gloo")
    parser.add_argument("--batch", type=script.count, default=16, help="sequences of a rank")
    parser.add_argument("--repetitions", type=script.count, default=5)
    parser.add_argument(
        "--iterations", type=script.count, default=30, help="of a training, after a few to warm up"
    )
    names = [setting.name for setting in SETTINGS]
    parser.add_argument(
        "--settings", nargs="+", choices=names, default=names, metavar="SETTING", help=f"of {names}"
    )
    arguments = parser.parse_args()
    if PLAIN not in arguments.settings:
        parser.error(f"--settings must have {PLAIN!r}, beside which the others are shown")
    return arguments


def main() -> None:
    arguments = arguments_of(__doc__)
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]) if arguments.backend == "nccl" else 0)
    torch.cuda.set_device(device)
    dist.init_process_group(arguments.backend)
    control, rows = dist.new_group(backend="gloo"), []
    settings = [setting for setting in SETTINGS if setting.name in arguments.settings]
    for turn, setting in itertools.product(range(arguments.repetitions), settings):
        figures, model = train(setting, device, arguments)
        rows.append({"turn": turn, **figures, "same": are_same(model, control)})
    if dist.get_rank() == 0:
        about = {
            "card": torch.cuda.get_device_name(device),
            "date": datetime.date.today().isoformat(),
            "torch": torch.__version__,
            "world_size": dist.get_world_size(),
            **{name: getattr(arguments, name) for name in ("backend", "batch", "iterations")},
        }
        launcher = f"torchrun --nproc-per-node {dist.get_world_size()}"
        script.write_report(arguments.output, {**about, "rows": rows}, launcher=launcher)
        print(", ".join(f"{key} {value}" for key, value in about.items()))
        print_table(rows)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
