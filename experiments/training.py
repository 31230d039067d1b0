"""What the commands ``train`` and ``run`` do, locally and under torchrun."""

import contextlib
import dataclasses
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import gymnasium
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from mqgrad.agents.checkpoint import load_settings
from mqgrad.agents.config import OF_THE_AGENT, TrainConfig, plain
from mqgrad.agents.train import check_writable, train
from mqgrad.envs import ENV_ID
from mqgrad.envs.settings import make_settings
from mqgrad.trainers.clusters.clock import ModelClock
from mqgrad.trainers.clusters.distributed import Distributed
from mqgrad.trainers.clusters.torchrun_ranks import on_rank_0
from mqgrad.trainers.link import LinkEmulation
from mqgrad.trainers.settings import check_positive
from mqgrad.widths import format_width

from .runs import RunPoint, RunRecord, run_training

if TYPE_CHECKING:
    from .tensorboard_log import TensorBoardLog

_T = TypeVar("_T")


def under_torchrun() -> bool:
    """Whether this process is a rank of a torchrun job."""
    return "TORCHELASTIC_RUN_ID" in os.environ


def read_once(read: Callable[[], _T]) -> _T:
    """What ``read`` returns; in a torchrun job only rank 0 reads, and the other ranks need no copy of its files."""
    return on_rank_0(read) if under_torchrun() else read()


@contextlib.contextmanager
def open_cluster(
    workload: str,
    settings: dict[str, Any],
    num_workers: int,
    timeout_seconds: float = 60.0,
    clock: ModelClock | None = None,
) -> Iterator[Distributed | None]:
    """Local workers, or the ranks of the torchrun job: there, ranks other than 0 serve and then get None."""
    if not under_torchrun():
        with Distributed(
            workload, settings, num_workers=num_workers, clock=clock, timeout_seconds=timeout_seconds
        ) as cluster:
            yield cluster
        return
    cluster = Distributed.from_torchrun(workload, settings, clock=clock, timeout_seconds=timeout_seconds)
    if int(os.environ["RANK"]) == 0:
        with cluster:
            yield cluster
    else:
        cluster.serve()
        yield None


def train_policy(config: TrainConfig, *, resume: bool) -> Path | None:
    """Train a policy; returns the model's path, or None on the serving ranks of a torchrun job."""
    if not under_torchrun():
        return train(config, resume=resume)
    env = config.env_arguments()
    settings = make_settings(env.get("preset"), {name: env[name] for name in env if name != "preset"})
    with open_cluster(
        settings.workload, settings.workload_settings or {}, 0, settings.timeout_seconds, settings.clock
    ) as cluster:
        if cluster is None:
            return None
        return train(
            dataclasses.replace(config, env={**config.env, "num_workers": cluster.world_size}),
            resume=resume,
            make_env=lambda: gymnasium.make(ENV_ID, cluster=cluster, **env),
        )


def resume_config(
    output: Path, total_steps: int | None, total_seconds: float | None, given: dict[str, tuple[str, Any]]
) -> TrainConfig:
    """The saved configuration of a run folder; limits and a timeout that are given replace the saved ones.

    Args:
        given: names and values of what else the command line says, by option; all but the timeout must agree with
            what the run was started with, the environment's defaults included.

    Raises:
        FileNotFoundError: if the folder holds no run.
        ValueError: an option says otherwise than the run.
    """
    path = output / "config.json"
    if not path.exists():
        raise FileNotFoundError(f"{output} holds no run to resume; start one without --resume")
    saved = TrainConfig.load(path)
    started_with = plain(load_settings(output) or {}) | saved.env
    started_with |= {name: getattr(saved, name) for name in OF_THE_AGENT}
    for option, (name, value) in given.items():
        if name == "timeout_seconds":
            saved = dataclasses.replace(saved, env={**saved.env, name: value})
        elif plain(value) != plain(own := started_with.get(name)):
            raise ValueError(
                f"{option} asks for {value}, but the run in {output} was started with {own}: leave {option} out, "
                "or start another run in another folder"
            )
    if total_steps is None and total_seconds is None:
        return dataclasses.replace(saved, output=output)
    return dataclasses.replace(saved, output=output, total_steps=total_steps, total_seconds=total_seconds)


def check_run(budget_seconds: float | None, tensorboard: Path | None, record: Path | None) -> None:
    """Find before any worker starts what would fail after it.

    Raises:
        OSError: a folder does not exist or cannot be written.
        ValueError: a budget that would never be spent.
    """
    if budget_seconds is not None:
        check_positive(budget_seconds=budget_seconds)
    if tensorboard is not None:
        check_writable(tensorboard)
    if record is None:
        return
    folder = record.absolute().parent
    if not folder.is_dir():
        raise FileNotFoundError(f"there is no folder {folder} for the record")
    if record.is_dir():
        raise IsADirectoryError(f"the record {record} is a folder; give a file")
    check_writable(folder)


def run_once(
    cluster: Distributed,
    controller: str | None,
    seed: int,
    *,
    compressor: str,
    method: str,
    link: LinkEmulation | None,
    iterations: int | None,
    budget_seconds: float | None,
    tensorboard: Path | None,
    record: Path | None,
) -> RunRecord:
    """One run with a progress bar and, if asked, TensorBoard logs and a JSON file.

    See :func:`check_run` for what can be found out before.
    """
    with contextlib.ExitStack() as stack:
        progress = stack.enter_context(progress_with_status())
        bar = progress.add_task(escape(controller or method), total=1.0, status="")
        log = None if tensorboard is None else stack.enter_context(open_log(tensorboard))

        def on_point(point: RunPoint) -> None:
            done = _share_done(point, iterations, budget_seconds)
            status = f"loss {point.heldout['loss']:.4f}  {format_width(point.bits)} bits"
            progress.update(bar, completed=done, status=status)
            if log is not None:
                log.write(point)

        def on_start(started: RunRecord) -> None:
            if record is not None:  # whatever ends the run; its outcome tells
                stack.callback(lambda: started.write(record) if started.points else None)

        return run_training(
            cluster,
            controller,
            seed,
            compressor=compressor,
            method=method,
            link=link,
            iterations=iterations,
            budget_seconds=budget_seconds,
            on_start=on_start,
            on_point=on_point,
        )


def progress_with_status() -> Progress:
    """A bar whose tasks have a ``description`` before it and a ``status`` behind it."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[status]}"),
        TimeRemainingColumn(),
    )
    return Progress(*columns)


def _share_done(point: RunPoint, iterations: int | None, budget_seconds: float | None) -> float:
    done = point.iteration / iterations if iterations else 0.0
    if budget_seconds:
        done = max(done, point.elapsed_seconds / budget_seconds)
    return min(done, 1.0)


def open_log(folder: Path) -> "contextlib.closing[TensorBoardLog]":
    """TensorBoard logs that are closed with the block; TensorBoard is imported here, for runs that use it."""
    from .tensorboard_log import TensorBoardLog

    return contextlib.closing(TensorBoardLog(folder))
