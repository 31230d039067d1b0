"""What a workload is: the protocol a person implements to train their own model under a cluster."""

import importlib
import inspect
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path, PurePath
from typing import Any, Protocol, TypeAlias, runtime_checkable

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from mqgrad.files import file_digest

Batch: TypeAlias = tuple[torch.Tensor, torch.Tensor]
"""Inputs and targets; the first axis of both is the example."""


@runtime_checkable
class Workload(Protocol):
    """A model, its data and its optimizer.

    Building one must be cheap (load data on first use): the driver builds it too, to check the settings. One object
    serves all runs of a process, one after another: what changes in the course of a run, such as a count of
    iterations, belongs into the model, the scheduler or the iterator of batches, which each run has anew.
    """

    @property
    def name(self) -> str:
        """Name in tables and logs."""
        ...

    def build_model(self) -> nn.Module:
        """A freshly initialised model. The caller seeds torch first."""
        ...

    def build_optimizer(self, model: nn.Module) -> Optimizer:
        """The optimizer of every replica."""
        ...

    def build_scheduler(self, optimizer: Optimizer) -> LRScheduler:
        """Learning rate by iteration. The length of the run is unknown, unless a setting gives it, as
        ``decay_iterations`` of the built-in workloads does: without one do not anneal towards an end."""
        ...

    def batches(self, rank: int, world_size: int, seed: int) -> Iterator[Batch]:
        """Endless batches of one rank: disjoint from the other ranks', the same for the same seed.

        Here and in the other methods of a workload torch's own generator is seeded with each run. Take whatever else
        is drawn at random from ``seed``: nobody seeds ``numpy.random`` or ``random``, which virtual ranks share with
        the agent.
        """
        ...

    def loss(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        """Scalar training loss of a batch, between 1e-6 and 1e18 where its logarithm is rewarded, as
        ``mqgrad train`` does. ``model`` is that of ``build_model``, with most methods within DistributedDataParallel:
        call it, and do not rely on its ``module``."""
        ...

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """Held-out figures, ``loss`` among them. The caller restores the mode (``model.train()``)."""
        ...


Factory: TypeAlias = Callable[..., Workload]

# References, not callables: worker processes import the factory by name, and data libraries load on first use.
_REFERENCES: dict[str, str] = {
    "digits-mlp": "mqgrad.trainers.workloads.digits:DigitsMLP",
    "digits-cnn": "mqgrad.trainers.workloads.digits:DigitsCNN",
    "agnews-bilstm": "mqgrad.trainers.workloads.agnews:AGNewsBiLSTM",
    "bytes-gpt": "mqgrad.trainers.workloads.gpt:BytesGPT",
    "bytes-gpt-large": "mqgrad.trainers.workloads.gpt:BytesGPTLarge",
    "bytes-lstm": "mqgrad.trainers.workloads.lstm:BytesLSTM",
    "cifar10-cnn": "mqgrad.trainers.workloads.cifar:CIFAR10CNN",
    "cifar10-resnet18": "mqgrad.trainers.workloads.cifar:CIFAR10ResNet18",
    "cifar100-resnet34": "mqgrad.trainers.workloads.cifar:CIFAR100ResNet34",
    "logreg": "mqgrad.trainers.workloads.logreg:LogisticRegression",
}


def workload_names() -> tuple[str, ...]:
    """Names that :func:`make_workload` knows."""
    return tuple(sorted(_REFERENCES))


def register_workload(name: str, factory: Factory | str) -> None:
    """Make a workload known by a name, in this process and in the workers it starts.

    Args:
        name: the name to use from now on; replaces an earlier registration.
        factory: a class or function returning the workload, or its ``"package.module:factory"``.

    Raises:
        ValueError: when workers could not import the factory.
    """
    if not isinstance(factory, str):
        module, attribute = (getattr(factory, key, "") for key in ("__module__", "__qualname__"))
        if module == "__main__" or not attribute.isidentifier():  # nested, a lambda, a partial
            raise ValueError(
                f"workload factory {factory!r} cannot be imported by worker processes: define it as a class or "
                "function at the top level of a module, outside the script that is run"
            )
        factory = f"{module}:{attribute}"
    _REFERENCES[name] = factory


def workload_reference(name: str) -> str:
    """``"package.module:factory"`` of a registered name; such a reference itself passes unchanged.

    Raises:
        ValueError: unknown name.
    """
    if ":" in name:
        return name
    if name not in _REFERENCES:
        raise ValueError(
            f"unknown workload {name!r}; known: {', '.join(workload_names())}; "
            "for your own give 'package.module:factory'"
        )
    return _REFERENCES[name]


def make_workload(name: str, /, **settings: Any) -> Workload:
    """Build a workload from its name, or from ``"package.module:factory"``.

    Raises:
        ValueError: an unknown name, a factory that cannot be imported, an unknown or invalid setting.
    """
    factory = _import_factory(workload_reference(name))
    _check_settings(name, factory, settings)
    workload = factory(**settings)
    if not isinstance(workload, Workload):
        missing = [m for m in _METHODS if getattr(workload, m, None) is None]
        raise ValueError(f"workload {name!r} is a {type(workload).__name__} without {', '.join(missing)}")
    return workload


def workload_settings(name: str) -> tuple[str, ...]:
    """Names of the settings of a workload.

    Raises:
        ValueError: an unknown name, or a factory that cannot be imported.
    """
    return tuple(inspect.signature(_import_factory(workload_reference(name))).parameters)


def module_digests(names: Iterable[str]) -> dict[str, str]:
    """Of each module that workloads are named from (``module:factory``), but not of what it imports."""
    modules = sorted({name.partition(":")[0] for name in names if ":" in name})
    files = {name: inspect.getsourcefile(importlib.import_module(name)) for name in modules}
    return {name: file_digest(Path(file)) for name, file in files.items() if file is not None}


_METHODS = ("name", "build_model", "build_optimizer", "build_scheduler", "batches", "loss", "evaluate")


def _import_factory(reference: str) -> Factory:
    module_name, _, attribute = reference.partition(":")
    if "/" in module_name or module_name.startswith(".") or module_name.endswith(".py"):
        raise ValueError(
            f"workload {reference!r}: {module_name!r} is a path; give the name of the module, as "
            f"'{PurePath(module_name).stem}:{attribute}', in its folder"
        )
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise ValueError(
            f"workload {reference!r}: no module {error.name!r} can be imported; it has to be in the current folder "
            "or on PYTHONPATH"
        ) from error
    factory = getattr(module, attribute, None)
    if not callable(factory):
        raise ValueError(f"workload {reference!r}: module {module_name!r} has no callable {attribute!r}")
    return factory


def _check_settings(name: str, factory: Factory, settings: dict[str, Any]) -> None:
    signature = inspect.signature(factory)
    parameters = signature.parameters
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    unknown = sorted(set(settings) - set(parameters))
    if unknown and not takes_any:
        raise ValueError(
            f"workload {name!r} has no setting {', '.join(map(repr, unknown))}; it has {', '.join(parameters)}"
        )
    try:
        signature.bind(**settings)
    except TypeError as error:
        raise ValueError(f"workload {name!r}: {error}") from None
