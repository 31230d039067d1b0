"""The small messages between three ranks, one kind at a time."""

from typing import Any

import pytest
from ranks import run_ranks

from mqgrad.codecs.quantization_noise import Coding
from mqgrad.collectives.own_group import own_group
from mqgrad.collectives.process_group import ProcessGroupTransport
from mqgrad.hook.agreement import Agreement, Decision, RankDisagreement
from mqgrad.statistics.interval import Trial
from mqgrad.statistics.rank import RankStatistics

CHECKED = {
    "configuration": "settings",
    "iteration": 7,
    "bits": 4,
    "announced": 0,
    "losses": 2,
    "residuals": 8,
    "parameters": 5,
    "chosen": "",
}
MIXED = (2, 8, 32)
RUN = {"iteration": 12, "bits": 1 / 4, "period": 3, "coding": Coding(rotated=(1, 2, 3))}


def answers(*own: dict[str, Any]) -> list[tuple[str, float]]:
    """What each rank is told where they differ from ``CHECKED`` so, "" where they agree; and the bytes it sent."""

    def rank_main(rank: int) -> tuple[str, float]:
        mine = CHECKED | own[rank]
        transport = ProcessGroupTransport(own_group(None, 10.0))
        pending = Agreement(transport, mine.pop("configuration")).start_check(**mine)
        told = ""
        try:
            pending.wait()
        except RankDisagreement as error:
            told = str(error)
        sent = transport.wire_bytes
        transport.close()
        return told, sent

    return run_ranks(rank_main, len(own))


@pytest.mark.parametrize(
    ("differs", "message"),
    [
        ({"iteration": 6}, "about the iteration (rank 0: 7, rank 1: 7, rank 2: 6)"),
        ({"bits": 1 / 64}, "about the bit width (rank 0: 4, rank 1: 4, rank 2: 1/64)"),
        ({"announced": 5}, "about the announced iterations (rank 0: 0, rank 1: 0, rank 2: 5)"),
        ({"losses": 1}, "about the reported losses (rank 0: 2, rank 1: 2, rank 2: 1)"),
        ({"residuals": 0}, "about the residuals (rank 0: 8, rank 1: 8, rank 2: 0)"),
        ({"parameters": 6}, "about the first parameters (rank 0: digest 000000000005, rank 1: digest "),
        (
            {"chosen": "gathers"},
            "about the compressor's choice (rank 0: digest 000000000000, rank 1: digest ",
        ),
        (
            {"iteration": 6, "bits": 2, "residuals": 0},
            "about the iteration (rank 0: 7, rank 1: 7, rank 2: 6)",
        ),
        ({"configuration": "others", "iteration": 6}, "about the configuration (rank 0: digest "),
        ({"bits": MIXED}, "about the bit width (rank 0: 4, rank 1: 4, rank 2: by parameter, digest "),
    ],
)
def test_every_rank_is_told_the_first_difference_and_its_own_configuration(
    differs: dict[str, Any], message: str
) -> None:
    for rank, (told, _) in enumerate(answers({}, {}, differs)):
        assert f"ranks disagree {message}" in told
        configuration = "others" if rank == 2 and "configuration" in differs else "settings"
        assert f"seen by rank {rank} with configuration [{configuration}]" in told


def test_calls_that_may_have_made_the_difference_are_named() -> None:
    """One rank's take_statistics() forgets its losses, and its mark() has its first iteration counted."""
    for told, _ in answers({}, {"losses": 0}):
        assert "call step(), take_statistics() and mark() alike" in told
    for told, _ in answers({}, {"announced": 3}):
        assert "call step(), set_width() and begin_interval() alike" in told
    for told, _ in answers({}, {"bits": 8}):
        assert "call step() and set_width() alike" in told


@pytest.mark.parametrize("bits", [4, 32, 1 / 64, MIXED])
def test_ranks_that_agree_send_64_bytes_to_each_other(bits: Any) -> None:
    assert answers(*[{"bits": bits}] * 3) == [("", 64 * 2)] * 3


def test_the_same_widths_in_another_order_are_others() -> None:
    for told, _ in answers({"bits": MIXED}, {"bits": MIXED}, {"bits": MIXED[::-1]}):
        assert "ranks disagree about the bit width" in told


@pytest.mark.parametrize(
    ("decided", "others", "sent"),
    [(4, 8, 24), (1 / 4, 8, 24), (4, MIXED, 24), (MIXED, 4, 24 + 24), (MIXED, MIXED[::-1], 24 + 24)],
)
def test_what_rank_0_decided_is_adopted_by_all(decided: Any, others: Any, sent: int) -> None:
    def rank_main(rank: int) -> tuple[Decision, float]:
        transport = ProcessGroupTransport(own_group(None, 10.0))
        own = Decision(decided if rank == 0 else others, 5 + rank, 8 * (rank + 1))
        adopted = Agreement(transport, "").of_rank_0(own, len(MIXED))
        wire_bytes = transport.wire_bytes
        transport.close()
        return adopted, wire_bytes

    expected = Decision(decided, 5.0, 8.0)
    results = run_ranks(rank_main, 3)
    assert results == [(expected, sent), (expected, 0), (expected, 0)]
    for adopted, _ in results:  # 4 and not 4.0, which would be another text in a file
        assert repr(adopted) == repr(expected)


def test_all_ranks_gather_the_same_statistics() -> None:
    def rank_main(rank: int):
        own = RankStatistics(
            losses=[rank + 1.0, rank + 2.0],
            step_seconds=2.0 * (rank + 1),
            compute_seconds=rank + 1.0,
            wire_bytes=100.0 * rank,
            parameters={1: (10, 1.0 + rank, 3.0, 0.5, 2.0), 0: (20, 2.0, 3.0 * rank, 0.25 * rank, 1.0)},
        )
        transport = ProcessGroupTransport(own_group(None, 10.0))
        gathered = Agreement(transport, "").gather(own, interval=2, last_period=1, **RUN)
        transport.close()
        return gathered

    first, *others = run_ranks(rank_main, 3)
    assert others == [first, first]
    assert {name: getattr(first, name) for name in RUN} == RUN
    assert first.world_size == 3
    assert first.losses == (2.0, 3.0)
    assert first.step_seconds == 3.0  # of the slowest rank, an iteration
    assert (first.compute_seconds, first.wire_bytes) == (1.0, 50.0)
    zero, one = first.parameters
    assert (zero.numel, zero.norm_sq, zero.peak_energy, zero.trials) == (20, 2.0, 1.0, (Trial(0.25, 1.0),))
    assert (one.numel, one.norm_sq, one.peak_energy, one.trials) == (10, 2.0, 1.0, (Trial(0.5, 2.0),))
