"""The fused step of the collective, and encoding and decoding into slices, give the bytes of the plain ops."""

import pytest
import torch
from torch import Tensor

from mqgrad import cuda_ext
from mqgrad.cuda_ext import reference

WIDTHS = range(1, 9)
SHAPES = [(1, 1), (7, 3), (513, 512), (1030, 8), (1543, 100), (1500, 2**62), (5000, 3000)]


def payloads(world_size: int, numel: int, bits: int, bucket_size: int) -> Tensor:
    """Of heavy-tailed gradients with zeros, one of which is not finite if there is room."""
    x = torch.randn(world_size, numel, generator=torch.Generator().manual_seed(numel)) ** 3
    x[:, numel // 3 : numel // 2] = 0.0
    if numel > 1000:
        x[0, 700] = torch.inf
    return torch.stack([cuda_ext.encode(row, bits, bucket_size, True, k) for k, row in enumerate(x)])


def mean_of(payloads_WP: Tensor, numel: int, bits: int, bucket_size: int) -> Tensor:
    mean = torch.zeros(numel)
    for payload in payloads_WP:
        reference.decode_add_(mean, payload, bits, bucket_size)
    return mean.div_(len(payloads_WP))


@pytest.mark.parametrize("bits", WIDTHS)
@pytest.mark.parametrize("stochastic", [False, True])
@pytest.mark.parametrize("world_size", [1, 3])
def test_reduce_encode_is_decode_sum_divide_encode(bits: int, stochastic: bool, world_size: int) -> None:
    for numel, bucket_size in SHAPES:
        payloads_WP = payloads(world_size, numel, bits, bucket_size)
        mean = mean_of(payloads_WP, numel, bits, bucket_size)
        ids = torch.arange(-(-numel // bucket_size)) + 5
        ours = cuda_ext.reduce_encode(payloads_WP, numel, bits, bucket_size, stochastic, 9, ids)
        assert torch.equal(ours, reference.encode(mean, bits, bucket_size, stochastic, 9, ids))


@pytest.mark.parametrize("bits", WIDTHS)
@pytest.mark.parametrize(("stochastic", "alpha", "beta"), [(False, 1.0, 1.0), (True, 0.7, 0.9)])
def test_reduce_encode_updates_the_residual(bits: int, stochastic: bool, alpha: float, beta: float) -> None:
    for numel, bucket_size in SHAPES:
        payloads_WP = payloads(2, numel, bits, bucket_size)
        mean = mean_of(payloads_WP, numel, bits, bucket_size)
        ours, expected = torch.full((numel,), 0.01), torch.full((numel,), 0.01)
        payload = cuda_ext.reduce_encode(
            payloads_WP, numel, bits, bucket_size, stochastic, 9, residual=ours, alpha=alpha, beta=beta
        )
        settings, gains = (bits, bucket_size, stochastic, 9), {"alpha": alpha, "beta": beta}
        assert torch.equal(payload, reference.encode(mean, *settings, residual=expected, **gains))
        assert torch.equal(ours, expected)


def test_reduce_encode_does_not_depend_on_threads() -> None:
    payloads_WP = payloads(3, 200_003, 3, 512)
    before = torch.get_num_threads()
    results = []
    for threads in (1, 2, 5):
        torch.set_num_threads(threads)
        results.append(cuda_ext.reduce_encode(payloads_WP, 200_003, 3, 512, True, 1))
    torch.set_num_threads(before)
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


@pytest.mark.parametrize("bits", WIDTHS)
@pytest.mark.parametrize("offset", [0, 1, 3])
def test_outputs_may_be_slices(bits: int, offset: int) -> None:
    """As the collective uses them: a row of payloads, a part of the flat gradient; nothing beside it is touched."""
    x = torch.randn(1000, generator=torch.Generator().manual_seed(3))
    expected = cuda_ext.encode(x, bits, 96, True, 4)
    message = torch.full((len(expected) + offset + 9,), 77, dtype=torch.uint8)
    out = message[offset : offset + len(expected)]
    assert cuda_ext.encode(x, bits, 96, True, 4, out=out) is out
    assert torch.equal(out, expected)
    cuda_ext.encode(x, bits, 96, True, 4, residual=torch.zeros(1000), out=out.zero_())
    assert torch.equal(out, expected)
    assert bool((message[:offset] == 77).all() & (message[offset + len(expected) :] == 77).all())
    flat = torch.full((1009 + offset,), 7.0)
    part = flat[offset : offset + 1000]
    cuda_ext.decode_into(part, out, bits, 96)
    assert torch.equal(part, cuda_ext.decode(expected, 1000, bits, 96))
    assert bool((flat[:offset] == 7).all() & (flat[offset + 1000 :] == 7).all())


REDUCE = {
    "uniform": lambda p, residual: cuda_ext.reduce_encode(p, 1000, 3, 64, False, 9, residual=residual),
    "rotated": lambda p, residual: cuda_ext.reduce_encode_rotated(p, 1000, 2, 64, True, 9, residual=residual),
    "bfloat16": lambda p, residual: cuda_ext.reduce_encode_bfloat16(p, 1000, residual=residual),
}
SIZES = {
    "uniform": cuda_ext.payload_bytes(1000, 3, 64),
    "rotated": cuda_ext.rotated_bytes(1000, 2, 64),
    "bfloat16": 2000,
}


def messages_of(family: str, gap: int) -> tuple[Tensor, Tensor]:
    """Three messages of random bytes, and their payloads, with the end of one and the front of the next between."""
    size, generator = SIZES[family], torch.Generator().manual_seed(gap)
    messages = torch.randint(64, (3, size + gap), generator=generator, dtype=torch.uint8)
    return messages, messages[:, gap // 2 : gap // 2 + size]


@pytest.mark.parametrize("gap", [0, 1, 8, 300])
@pytest.mark.parametrize("family", REDUCE)
def test_payloads_may_be_parts_of_messages(family: str, gap: int) -> None:
    messages, parts = messages_of(family, gap)
    before, residuals = messages.clone(), torch.ones(2, 1000)
    ours = REDUCE[family](parts, residuals[0])
    assert torch.equal(ours, REDUCE[family](parts.clone(memory_format=torch.contiguous_format), residuals[1]))
    assert torch.equal(residuals[0].view(torch.int32), residuals[1].view(torch.int32))
    assert torch.equal(messages, before)


@pytest.mark.parametrize("family", REDUCE)
def test_a_residual_between_payloads_is_refused(family: str) -> None:
    messages, parts = messages_of(family, 3 * 4096 - SIZES[family])
    residual = messages[0].view(torch.float32)[-1000:]
    with pytest.raises(
        ValueError, match="residual is written in place and must not share memory with payloads"
    ):
        REDUCE[family](parts, residual)
