"""One thread per test process: the networks are tiny, and the cores are shared."""

from collections.abc import Iterator

import pytest

from mqgrad.trainers.threads import torch_threads


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Iterator[None]:
    with torch_threads(1):
        yield
