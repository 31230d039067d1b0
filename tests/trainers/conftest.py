"""What all tests of this folder share."""

from collections.abc import Iterator

import pytest

from mqgrad.trainers.threads import torch_threads


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Small operators on several threads are slower, and far slower where other work keeps the cores busy."""
    with torch_threads(1):
        yield
