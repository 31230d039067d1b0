"""What own workloads get wrong, and how it is told."""

from collections.abc import Callable
from typing import Any

import faulty
import pytest
import torch
from torch import nn

from mqgrad.trainers import Distributed, ModelClock, Simulated, make_workload
from mqgrad.trainers.workloads.calls import scheduler_of, training_loss

CLOCK = ModelClock(compute_seconds=0.01, mbit_per_s=10.0)


class Wrong(faulty.Faulty):
    """Its loss is turned into something else."""

    def loss_as(self, change: Callable[[torch.Tensor], Any]) -> "Wrong":
        object.__setattr__(self, "change", change)
        return self

    def loss(self, model: nn.Module, batch: Any) -> torch.Tensor:
        return self.change(super().loss(model, batch))  # type: ignore[attr-defined]

    def build_scheduler(self, optimizer: torch.optim.Optimizer) -> Any:
        return None


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (lambda loss: loss.repeat(4), r"a tensor of shape \[4\]"),
        (lambda loss: loss.item(), r"\d\.\d+"),
        (lambda loss: loss.detach(), "a tensor without gradient"),
        (lambda loss: None, "None"),
    ],
    ids=["not reduced", "a float", "detached", "no return"],
)
def test_what_no_backward_can_begin_from_is_named(change: Callable[[torch.Tensor], Any], found: str) -> None:
    workload = Wrong().loss_as(change)
    told = rf"loss\(\) of workload 'faulty' returned {found}; it must be a tensor of one number"
    with pytest.raises(ValueError, match=told):
        training_loss(workload, workload.build_model(), next(workload.batches(0, 1, 0)))


def test_a_loss_of_one_element_is_taken_as_it_is() -> None:
    workload = Wrong().loss_as(lambda loss: loss.reshape(1))
    assert training_loss(workload, workload.build_model(), next(workload.batches(0, 1, 0))).shape == (1,)


def test_a_missing_scheduler_is_named_with_one_that_changes_nothing() -> None:
    workload = Wrong()
    optimizer = workload.build_optimizer(workload.build_model())
    with pytest.raises(
        ValueError, match=r"build_scheduler\(\) of workload 'faulty' returned None; .*ConstantLR"
    ):
        scheduler_of(workload, optimizer)


@pytest.mark.parametrize("kind", ["processes", "simulated"])
def test_an_evaluation_that_leaves_the_model_in_evaluation_mode_changes_nothing(kind: str) -> None:
    """Rank 0 alone evaluates, and would have gone on without dropout, unlike the others."""
    losses = []
    for fault in ("", "stay-in-evaluation"):
        settings = {"fault": fault, "has_dropout": True}
        with (
            Distributed("faulty:Faulty", settings)
            if kind == "processes"
            else Simulated("faulty:Faulty", settings, clock=CLOCK)
        ) as cluster:
            cluster.reset(seed=0)
            cluster.evaluate()
            losses.append(cluster.run(3, bits=4).losses)
    assert losses[0] == losses[1]


def test_a_method_that_is_none_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(faulty.Faulty, "build_scheduler", None)
    with pytest.raises(ValueError, match=r"is a Faulty without build_scheduler$"):
        make_workload("faulty:Faulty")
