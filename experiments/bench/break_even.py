"""Below which link rate does a bit width pay?"""

import dataclasses
from collections.abc import Sequence

from mqgrad.widths import Width

from .steps import StepFigures


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class BreakEven:
    """The answer for one width."""

    bits: Width
    saved_bytes: float
    """That a rank does not send per iteration."""
    extra_seconds: float
    """Per iteration, by which it would be longer than plain DDP's if bytes took no time."""
    mbit_per_s: float | None
    """Link rate, 10⁶ bit/s, below which an iteration is faster than plain DDP's; 0 if at none, None if at any."""


def break_even_mbit_per_s(saved_bytes: float, extra_seconds: float) -> float | None:
    """Link rate below which a width is faster per iteration than plain fp32 DDP, in 10⁶ bit/s.

    On a link of R bit/s whose time nothing hides, an iteration takes

        plain DDP   S_0(R) = t       + 8·B_0 / R     B_0 = 2·(W−1)/W · G bytes sent by each of W ranks
        width b     S_b(R) = t + c_b + 8·B_b / R

    with t the seconds of computing, G the bytes of the gradients. They are equal at R = 8·(B_0 − B_b) / c_b: there,
    what is saved on the wire pays for c_b, everything else that the width adds.

    Returns:
        0 if nothing is saved, None if what is saved costs nothing.
    """
    if saved_bytes <= 0:
        return 0.0
    if extra_seconds <= 0:
        return None
    return 8 * saved_bytes / extra_seconds / 1e6


def break_even_rates(
    steps: Sequence[StepFigures], *, world_size: int, gradient_bytes: int, link_mbit_per_s: float
) -> list[BreakEven]:
    """Break-even rates of the measured coded widths.

    c_b is not the sum of the parts that are timed: coding, the hook, more collectives and more, smaller messages
    than plain DDP's all show in the step. So it is taken from the steps S as measured, on a link of R' bit/s:

        c_b = (S_b − S_0) + 8·(B_0 − B_b) / R'

    S_b − S_0 is the median over rounds, each of which ran both. The last term is what the width has saved on that
    link, and would not have saved on one without limit; on loopback it is small. R' is the rate of a large fp32
    all-reduce. The answer agrees with the steps: a width that is slower than plain DDP where it was measured pays
    only below R'. Where backward hides the wire, c_b comes out too large.

    Args:
        steps: of one workload; plain DDP and 32 bits are left out.
        world_size: W of the formula.
        gradient_bytes: G of the formula.
        link_mbit_per_s: R', in 10⁶ bit/s.
    """
    plain_bytes = 2 * (world_size - 1) / world_size * gradient_bytes
    rates = []
    for step in steps:
        if step.bits is None or step.bits == 32:
            continue
        saved = plain_bytes - step.wire_bytes
        extra = step.extra_seconds + 8 * saved / (link_mbit_per_s * 1e6)
        rate = break_even_mbit_per_s(saved, extra)
        rates.append(BreakEven(bits=step.bits, saved_bytes=saved, extra_seconds=extra, mbit_per_s=rate))
    return rates
