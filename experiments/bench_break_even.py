"""Below which link rate does a bit width pay?"""

import dataclasses
from collections.abc import Sequence

from mqgrad.widths import Width

from .bench_steps import StepFigures


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class BreakEven:
    """The answer for one width."""

    bits: Width
    saved_bytes: float
    """That a rank does not send per iteration."""
    extra_seconds: float
    """Per iteration: encoding, decoding and the hook."""
    mbit_per_s: float | None
    """Link rate, 10⁶ bit/s, below which an iteration is faster than plain DDP's; 0 if at none, None if at any."""


def break_even_mbit_per_s(saved_bytes: float, extra_seconds: float) -> float | None:
    """Link rate below which a width is faster per iteration than plain fp32 DDP, in 10⁶ bit/s.

    On a link of R bit/s whose time nothing hides, with t the seconds of computing, an iteration takes

        plain DDP   t        + 8·B_plain / R     B_plain = 2·(W−1)/W · 4·d bytes sent by each of W ranks
        width b     t + c_b  + 8·B_b     / R     c_b = encode_b + decode_b + h seconds

    where h = max(0, step at width 32 through the hook − step of plain DDP) is what the hook itself costs. They are
    equal at R = 8·(B_plain − B_b) / c_b. Overlap with backward hides wire and codec alike, and is left out.

    Returns:
        0 if nothing is saved, None if what is saved costs nothing.
    """
    if saved_bytes <= 0:
        return 0.0
    if extra_seconds <= 0:
        return None
    return 8 * saved_bytes / extra_seconds / 1e6


def break_even_rates(steps: Sequence[StepFigures], *, world_size: int, parameters: int) -> list[BreakEven]:
    """Break-even rates of the measured coded widths.

    Args:
        steps: of one workload, plain DDP and width 32 among them.
        world_size: W of the formula.
        parameters: d of the formula.

    Raises:
        ValueError: plain DDP or width 32 is missing.
    """
    by_bits = {step.bits: step for step in steps}
    if None not in by_bits or 32 not in by_bits:
        raise ValueError(f"plain DDP (None) and width 32 must be measured, got {list(by_bits)}")
    plain_bytes = 2 * (world_size - 1) / world_size * 4 * parameters
    hook_seconds = max(0.0, by_bits[32].step_seconds - by_bits[None].step_seconds)
    coded = [step for step in steps if step.bits not in (None, 32)]
    return [_break_even(step, plain_bytes, hook_seconds) for step in coded]


def _break_even(step: StepFigures, plain_bytes: float, hook_seconds: float) -> BreakEven:
    assert step.bits is not None
    saved = plain_bytes - step.wire_bytes
    extra = step.encode_seconds + step.decode_seconds + hook_seconds
    return BreakEven(
        bits=step.bits,
        saved_bytes=saved,
        extra_seconds=extra,
        mbit_per_s=break_even_mbit_per_s(saved, extra),
    )
