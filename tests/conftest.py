"""Settings of the whole suite, and the ranks that its tests share."""

import signal
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from mqgrad.trainers import Distributed

try:
    import hypothesis
except ModuleNotFoundError:  # tests/cuda_ext/test_cuda.py runs without it
    pass
else:
    # Speed is measured in benchmarks: a busy machine must not fail a property. Derandomized, so that red is red
    # again.
    hypothesis.settings.register_profile("suite", deadline=None, derandomize=True)
    hypothesis.settings.load_profile("suite")


if (
    signal.getsignal(signal.SIGINT) is signal.SIG_IGN
):  # as where a script has begun the tests in the background
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def cluster() -> "Iterator[Distributed]":
    """Two real ranks; every test begins with a reset."""
    from mqgrad.trainers import Distributed  # here: tests of the kernels run without what it needs

    with Distributed("digits-mlp", {"width": 64}, num_workers=2) as cluster:
        yield cluster
