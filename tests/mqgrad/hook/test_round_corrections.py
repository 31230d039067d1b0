"""What codes leave out of small moves, and what variance reduction makes of it."""

import pytest
from falling import fallen
from ranks import run_ranks

import mqgrad


@pytest.mark.parametrize("bits", [0.25, 1, 2, 4, 8])
@pytest.mark.parametrize("variance_reduced", [False, True])
def test_error_feedback_repays_small_moves(bits: float, variance_reduced: bool) -> None:
    """Beside one large move in the same bucket, which their code leaves out again and again."""
    steps, rounds, period = [1.0, *[0.01] * 15], 300, 2

    def rank_main(rank: int) -> list[list[float]]:
        return fallen(
            mqgrad.FixedBits(bits),
            steps,
            rounds * period,
            period=period,
            variance_reduced=variance_reduced,
        )

    moved, others = (result[0] for result in run_ranks(rank_main))
    assert moved == others
    assert moved[0] == pytest.approx(rounds * period, rel=0.05)
    assert sum(moved[1:]) == pytest.approx(0.01 * 15 * rounds * period, rel=0.15)


def test_corrections_do_not_add_up_what_codes_leave_out() -> None:
    """Without error feedback, and with ranks that pull apart: the mean goes nowhere, and stays there."""

    def rank_main(rank: int) -> list[list[float]]:
        steps = [1.0 if rank == 0 else -1.0] * 64
        return fallen(mqgrad.FixedBits(2), steps, 800, compressor="qsgd", period=4, variance_reduced=True)

    together = run_ranks(rank_main)[0][0]
    assert max(map(abs, together)) < 100  # the random walk of 200 rounds; their sums would be thousands
