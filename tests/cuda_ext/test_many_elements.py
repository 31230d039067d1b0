"""More elements than 31 bits count: both ends of a long vector are coded as they are when they stand alone.

Between them the vector is zero, and most of it is the same memory again and again, as is what is decoded.
"""

import os
from collections.abc import Iterator

import memory
import pytest
import torch
from built import needs_extension
from torch import Tensor

from mqgrad import cuda_ext

pytestmark = [
    needs_extension,
    pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="this is not Linux"),
]

NUMEL, BUCKET_SIZE = 2**31 + 1000, 512
NUM_BUCKETS = 2**22 + 2
HEAD, TAIL = 1024, 2024  # elements at the ends, whole buckets: the tail begins two before 2^31
HEAD_BUCKETS, TAIL_BUCKETS = 2, 4


@pytest.fixture(scope="module")
def x() -> Iterator[Tensor]:
    """float32 [NUMEL]"""
    generator = torch.Generator().manual_seed(0)
    with memory.repeating_zeros(NUMEL, torch.float32) as x:
        x[:HEAD] = torch.randn(HEAD, generator=generator)
        x[-TAIL:] = torch.randn(TAIL, generator=generator)
        yield x


@pytest.fixture
def out() -> Iterator[Tensor]:
    """Zeros, float32 [NUMEL]"""
    with memory.repeating_zeros(NUMEL, torch.float32) as out:
        yield out


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Gives one call of a kernel all elements, not a part of them that 31 bits count."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def ends(long: Tensor, head: int = HEAD, tail: int = TAIL) -> Tensor:
    """The first and the last elements, one behind the other."""
    return torch.cat([long[:head], long[-tail:]])


def assert_same(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=0, atol=0)


def assert_ends(out: Tensor, expected: Tensor) -> None:
    """And zeros between them, in all memory that is not the same again."""
    assert_same(ends(out), expected)
    two_blocks = 2 * memory.BLOCK // out.itemsize
    assert not ends(out, two_blocks, two_blocks)[HEAD:-TAIL].any()


def encoded(x: Tensor, bits: int, stochastic: bool) -> tuple[Tensor, Tensor]:
    """The payload of x, and that of its ends alone, once they are the same bytes."""
    ids = ends(torch.arange(NUM_BUCKETS), HEAD_BUCKETS, TAIL_BUCKETS)
    alone = cuda_ext.encode(ends(x), bits, BUCKET_SIZE, stochastic, 7, ids)
    payload = cuda_ext.encode(x, bits, BUCKET_SIZE, stochastic, 7)
    scales, codes = payload.tensor_split([4 * NUM_BUCKETS])
    scales = ends(scales, 4 * HEAD_BUCKETS, 4 * TAIL_BUCKETS)
    codes = ends(codes, HEAD // 8 * bits, TAIL // 8 * bits)
    assert_same(torch.cat([scales, codes]), alone)
    return payload, alone


def test_uniform_stochastic(x: Tensor) -> None:
    encoded(x, 3, True)


def test_uniform_nearest(x: Tensor, out: Tensor, one_thread: None) -> None:
    payload, alone = encoded(x, 2, False)
    expected = cuda_ext.decode(alone, HEAD + TAIL, 2, BUCKET_SIZE)
    cuda_ext.decode_into(out, payload, 2, BUCKET_SIZE)
    assert_ends(out, expected)
    cuda_ext.decode_add_(out, payload, 2, BUCKET_SIZE)
    assert_ends(out, 2 * expected)


def test_rotated(x: Tensor, out: Tensor) -> None:
    bits, bucket_bytes = 2, BUCKET_SIZE // 4
    alone = cuda_ext.encode_rotated(ends(x), bits, BUCKET_SIZE, True, 7)
    payload = cuda_ext.encode_rotated(x, bits, BUCKET_SIZE, True, 7)
    seed, scales, codes = payload.tensor_split([8, 8 + 4 * NUM_BUCKETS])
    scales = ends(scales, 4 * HEAD_BUCKETS, 4 * TAIL_BUCKETS)
    codes = ends(codes, bucket_bytes * HEAD_BUCKETS, bucket_bytes * TAIL_BUCKETS)
    assert_same(torch.cat([seed, scales, codes]), alone)
    cuda_ext.decode_rotated_add_(out, payload, bits, BUCKET_SIZE)
    assert_ends(out, cuda_ext.decode_rotated(alone, HEAD + TAIL, bits, BUCKET_SIZE))


def test_sparse(x: Tensor, out: Tensor) -> None:
    shorter = torch.nn.functional.pad(ends(x), (0, 2**17))
    assert cuda_ext.sparse_count(len(shorter), 2) > HEAD + TAIL  # room for all that is not zero
    alone = cuda_ext.sparse_encode(shorter, 2)
    payload = cuda_ext.sparse_encode(x, 64)
    cuda_ext.sparse_decode_add_(out, payload, 64)
    assert_ends(out, cuda_ext.sparse_decode(alone, len(shorter), 2)[: HEAD + TAIL])


def test_bfloat16(x: Tensor, out: Tensor, one_thread: None) -> None:
    alone = cuda_ext.encode_bfloat16(ends(x))
    expected = cuda_ext.decode_bfloat16(alone, HEAD + TAIL)
    with memory.repeating_zeros(2 * NUMEL, torch.uint8) as payload:
        payload[: 2 * HEAD], payload[-2 * TAIL :] = alone[: 2 * HEAD], alone[2 * HEAD :]
        cuda_ext.decode_bfloat16_into(out, payload)
        assert_ends(out, expected)
        cuda_ext.decode_bfloat16_add_(out, payload)
        assert_ends(out, 2 * expected)
