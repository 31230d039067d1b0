"""What ranks work out by themselves is the same on all of them."""

from collections.abc import Iterator

import pytest
import torch

from mqgrad.tensors import raise_small_


@pytest.fixture
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("threads")
def test_small_elements_are_raised_alike_for_any_number_of_threads() -> None:
    generator = torch.Generator().manual_seed(0)
    for _ in range(20):
        x = torch.randn(100_003, generator=generator).exp().pow(4)
        raised = []
        for count in (1, 2, 3, 4):
            torch.set_num_threads(count)
            raised.append(x.clone())
            raise_small_(raised[-1], 0.5)
        assert all(torch.equal(raised[0], other) for other in raised[1:])
        least = 0.5 * x.double().mean()
        assert float(raised[0].min()) == pytest.approx(float(least), rel=2**-8)
        assert torch.equal(raised[0][x > 1.01 * least], x[x > 1.01 * least])


def test_a_tensor_of_zeros_stays_one() -> None:
    x = torch.zeros(5)
    raise_small_(x, 0.5)
    assert not x.any()
