"""What the tests of the environment share."""

import pytest
from toy_cluster import ToyCluster


@pytest.fixture
def toy() -> ToyCluster:
    return ToyCluster()
