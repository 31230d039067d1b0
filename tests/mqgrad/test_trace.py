"""The ranges that torch's profiler shows."""

import threading

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from mqgrad.costs import Costs
from mqgrad.stopwatch import add_seconds


def _encode(costs: Costs) -> None:
    with add_seconds(costs, "encode_seconds"):
        torch.ones(3).sum()


def test_other_threads_ranges_are_in_the_trace() -> None:
    costs = Costs()
    all_threads = torch._C._profiler._ExperimentalConfig(profile_all_threads=True)
    with profile(activities=[ProfilerActivity.CPU], experimental_config=all_threads) as profiler:
        thread = threading.Thread(target=_encode, args=(costs,))
        thread.start()
        thread.join()
    ranges = [event for event in profiler.events() if event.name == "mqgrad.encode"]
    assert len(ranges) == 1
    assert costs.encode_seconds > 0


def test_an_exception_passes_through_a_range() -> None:
    with (
        profile(activities=[ProfilerActivity.CPU]) as profiler,
        pytest.raises(ValueError, match="corrupt"),
        add_seconds(Costs(), "decode_seconds"),
    ):
        raise ValueError("corrupt payload")
    assert "mqgrad.decode" in [event.name for event in profiler.events()]
