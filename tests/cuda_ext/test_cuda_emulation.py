"""The emulation of CUDA itself: threads that do not meet at a barrier, or a misaligned vector, fail the launch.

What lacks a barrier does not always come out right."""

import ctypes
from concurrent.futures import Future

import pytest
from emulated_cuda import status

MISALIGNED_ADDRESS, LAUNCH_FAILURE = 716, 719


@pytest.mark.parametrize(
    ("kernel", "argument", "expected"),
    [
        ("all_meet", 0, 0),
        ("two_places", 0, LAUNCH_FAILURE),
        ("two_places", 2, 0),
        ("one_more", 5, LAUNCH_FAILURE),
        ("one_more", 64, 0),
        ("some_return", 32, LAUNCH_FAILURE),
        ("some_return", 64, 0),
        ("half_a_warp", 16, LAUNCH_FAILURE),
        ("half_a_warp", 32, 0),
    ],
)
def test_threads_meet_at_every_barrier_or_the_launch_fails(
    emulated: dict[str, Future[ctypes.CDLL]], kernel: str, argument: int, expected: int
) -> None:
    library = emulated["broken_rules"].result()
    for _ in range(2):  # a launch that failed leaves nothing behind
        assert status(library.run, kernel.encode(), argument) == expected
        assert status(library.run, b"all_meet", 0) == 0


@pytest.mark.parametrize("reader", [0, 63])
def test_what_lacks_a_barrier_comes_out_differently(
    emulated: dict[str, Future[ctypes.CDLL]], reader: int
) -> None:
    library = emulated["broken_rules"].result()
    assert {library.read_without_barrier(reader) for _ in range(8)} == {0, 1}


@pytest.mark.parametrize("kernel", ["load_vector", "store_vector"])
def test_a_vector_lies_at_a_multiple_of_its_size_or_the_launch_fails(
    emulated: dict[str, Future[ctypes.CDLL]], kernel: str
) -> None:
    library = emulated["broken_rules"].result()
    for at in range(48):
        assert status(library.run, kernel.encode(), at) == (MISALIGNED_ADDRESS if at % 16 else 0)
