"""Checksums: what they see, and the same from the C++ kernel and the reference."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from mqgrad import cuda_ext
from mqgrad.cuda_ext import CHECKSUM_BYTES, reference_checksum

SIZES = st.integers(0, 70) | st.sampled_from([255, 256, 257, 4099])
MESSAGES = st.lists(SIZES, min_size=1, max_size=4)
SALTS = st.integers(-(2**63), 2**63 - 1) | st.integers(0, 3)


def written(sizes: list[int], salt: int, seed: int = 0) -> tuple[Tensor, list[int]]:
    """Messages with random payloads of these sizes, and their lengths."""
    lengths = [size + CHECKSUM_BYTES for size in sizes]
    generator = torch.Generator().manual_seed(seed)
    messages = torch.randint(256, (sum(lengths),), generator=generator, dtype=torch.uint8)
    cuda_ext.write_checksums_(messages, lengths, salt)
    return messages, lengths


@given(MESSAGES, SALTS)
def test_what_was_written_is_right(sizes: list[int], salt: int) -> None:
    messages, lengths = written(sizes, salt)
    assert cuda_ext.wrong_checksums(messages, lengths, salt).tolist() == [False] * len(sizes)


@given(MESSAGES, SALTS, st.data())
def test_one_change_is_seen_in_its_message(sizes: list[int], salt: int, data: st.DataObject) -> None:
    """Of up to four bytes side by side, wherever they are."""
    messages, lengths = written(sizes, salt)
    changed = data.draw(st.integers(0, len(sizes) - 1))
    start = sum(lengths[:changed])
    at = start + data.draw(st.integers(0, lengths[changed] - 1))
    stop = min(at + 4, start + lengths[changed])
    mask = data.draw(st.lists(st.integers(0, 255), min_size=stop - at, max_size=stop - at).filter(any))
    messages[at:stop] ^= torch.tensor(mask, dtype=torch.uint8)
    expected = [r == changed for r in range(len(sizes))]
    assert cuda_ext.wrong_checksums(messages, lengths, salt).tolist() == expected


@given(st.integers(2, 60), st.data())
def test_words_that_change_places_are_seen(words: int, data: st.DataObject) -> None:
    messages, lengths = written([4 * words], salt=1)
    i, j = data.draw(st.lists(st.integers(0, words - 1), min_size=2, max_size=2, unique=True))
    values = messages[:-CHECKSUM_BYTES].view(torch.int32)
    values[[i, j]] = values[[j, i]].clone()
    assert cuda_ext.wrong_checksums(messages, lengths, 1).item() == bool(values[i] != values[j])


@given(SIZES, SALTS, SALTS)
def test_it_depends_on_the_salt(size: int, salt: int, other: int) -> None:
    messages, lengths = written([size], salt)
    assert cuda_ext.wrong_checksums(messages, lengths, other).item() == (salt != other)


@pytest.mark.parametrize("size", [0, 4, 100])
def test_zeros_throughout_are_not_right(size: int) -> None:
    zeros = torch.zeros(size + CHECKSUM_BYTES, dtype=torch.uint8)
    assert cuda_ext.wrong_checksums(zeros, [len(zeros)]).item()


@given(MESSAGES, st.data())
def test_only_what_is_covered_counts(sizes: list[int], data: st.DataObject) -> None:
    messages, lengths = written(sizes, 0)
    covered = [data.draw(st.integers(0, size)) for size in sizes]
    cuda_ext.write_checksums_(messages, lengths, covered=covered)
    expected = messages.clone()
    reference_checksum.write_checksums_(expected, lengths, covered, 0)
    assert torch.equal(messages, expected)
    changed = data.draw(st.integers(0, sum(lengths) - 1))
    messages[changed] ^= 4
    wrong = []
    for length, part in zip(lengths, covered, strict=True):
        wrong.append(0 <= changed < part or length - CHECKSUM_BYTES <= changed < length)
        changed -= length
    assert cuda_ext.wrong_checksums(messages, lengths, covered=covered).tolist() == wrong
    assert reference_checksum.wrong_checksums(messages, lengths, covered, 0).tolist() == wrong


@contextmanager
def within(messages: Tensor, offset: int) -> Iterator[Tensor]:
    """A copy that begins `offset` bytes behind an aligned address; what is around it must stay."""
    around = torch.full((len(messages) + 128,), 7, dtype=torch.uint8)
    inside = slice(64 + offset, 64 + offset + len(messages))
    around[inside] = messages
    yield around[inside]
    around[inside] = 7
    assert bool((around == 7).all())


@given(MESSAGES, SALTS, st.integers(0, 9))
def test_the_reference_agrees_wherever_messages_begin(sizes: list[int], salt: int, offset: int) -> None:
    expected, lengths = written(sizes, salt)
    with within(expected, offset) as messages:
        messages[lengths[0] - CHECKSUM_BYTES :] ^= 255
        expected[lengths[0] - CHECKSUM_BYTES :] ^= 255
        wrong = cuda_ext.wrong_checksums(messages, lengths, salt)
        assert torch.equal(wrong, reference_checksum.wrong_checksums(expected, lengths, sizes, salt))
        cuda_ext.write_checksums_(messages, lengths, salt)
        reference_checksum.write_checksums_(expected, lengths, sizes, salt)
        assert torch.equal(messages, expected)


def test_the_value_is_fixed() -> None:
    """A change of it is a change of what ranks send one another."""
    messages = torch.arange(13, dtype=torch.uint8)
    cuda_ext.write_checksums_(messages, [13], 5)
    assert messages.tolist() == [0, 1, 2, 3, 4, 219, 33, 74, 126, 45, 102, 37, 227]


@pytest.mark.parametrize(
    ("error", "messages", "lengths", "message"),
    [
        (TypeError, torch.zeros(20), [20], "messages must be a uint8 tensor, got torch.float32"),
        (ValueError, torch.zeros(20, dtype=torch.uint8), [19], "must have shape (19,), got (20,)"),
        (
            ValueError,
            torch.zeros(20, dtype=torch.uint8),
            [7, 13],
            "at least 8 bytes, its checksum; got lengths",
        ),
        (
            ValueError,
            torch.zeros(20, dtype=torch.uint8),
            [28, -8],
            "at least 8 bytes, its checksum; got lengths",
        ),
        (ValueError, torch.zeros(2, 20, dtype=torch.uint8), [40], "must have shape (40,), got (2, 20)"),
    ],
)
def test_wrong_messages_are_refused(
    error: type[Exception], messages: Tensor, lengths: list[int], message: str
) -> None:
    for op in (cuda_ext.write_checksums_, cuda_ext.wrong_checksums):
        with pytest.raises(error, match=re.escape(message)):
            op(messages, lengths)


@pytest.mark.parametrize("covered", [[13], [-1], [5, 5], []])
def test_a_covered_part_must_fit(covered: list[int]) -> None:
    with pytest.raises(ValueError, match="covered must be of messages with"):
        cuda_ext.wrong_checksums(torch.zeros(20, dtype=torch.uint8), [20], covered=covered)


def test_a_salt_must_fit() -> None:
    with pytest.raises(ValueError, match="salt must fit 64 bits"):
        cuda_ext.wrong_checksums(torch.zeros(20, dtype=torch.uint8), [20], 2**64)


def test_what_is_written_must_be_contiguous() -> None:
    with pytest.raises(ValueError, match="must be contiguous"):
        cuda_ext.write_checksums_(torch.zeros(40, dtype=torch.uint8)[::2], [20])
