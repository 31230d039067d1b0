"""What a script may have left out of its loop, or put into it twice, where nothing else would say so."""

import warnings

from .local_rounds import UNREGISTERED

BACKWARDS = 20
STEPS = 3
UNDECIDED = 20


class ForgottenCalls:
    """Warns, once for each, of a loop without ``step``, of one without the hook, of one with two steps, of one whose
    ``step`` comes before the optimizer's, and of one in which nobody chooses a width.

    Without ``step`` no interval ends, so that no width is ever decided, and no round does, so that replicas part;
    without the hook DDP averages in fp32; a second step is counted as an iteration, whose loss the ranks may take for
    one of another interval each.

    Args:
        rank: to be named.
        steps_alone: whether there are iterations whose gradients do not come through the hook, as in rounds.
    """

    def __init__(self, rank: int, *, steps_alone: bool) -> None:
        self._rank, self._steps_alone = rank, steps_alone
        self.backwards = 0
        """Since the last step."""
        self._steps = 0  # since the last backward
        self._undecided = 0
        self._has_hook = False
        self._told: set[str] = set()

    def on_bucket(self, *, is_last: bool) -> None:
        """A bucket has come through the hook."""
        self._has_hook, self._steps = True, 0
        self.backwards += is_last
        if self.backwards == BACKWARDS:
            self._warn(
                f"{BACKWARDS} backwards since the last step(): call state.step(loss) after each optimizer.step(), "
                "and accumulate gradients under ddp.no_sync()"
            )

    def on_step(self, *, is_undecided: bool) -> None:
        """An iteration has been reported.

        Args:
            is_undecided: its gradient had 32 bits because nobody has chosen a width.
        """
        self._undecided += is_undecided
        if self._undecided == UNDECIDED and self._has_hook:
            self._warn(
                f"{UNDECIDED} iterations at 32 bits, which compress nothing, as there is no controller, and nobody "
                "has asked for another width: give CompressionState a controller, such as mqgrad.FixedBits(4), "
                "or call set_width or begin_interval"
            )
        self.backwards = 0
        self._steps += 1
        if self._steps == STEPS and not self._has_hook:
            self._warn(f"{STEPS} steps, and no gradient has come through the hook: {UNREGISTERED}")
        if self._steps == 2 and self._has_hook and not self._steps_alone:
            self._warn(
                "a second step() since the last backward: call it once per iteration, after the last optimizer.step()"
            )

    def on_update(self, *, stands_still: bool) -> None:
        """An iteration has been reported, after which it is known whether parameters have ever moved."""
        if stands_still:
            self._warn(
                "no parameter has moved between a backward and its state.step(loss): call that after "
                "optimizer.step(), or controllers do not learn how much noise costs this optimizer"
            )

    def restart(self) -> None:
        """Another state has been loaded: what has come for the one before does not count."""
        self.backwards = self._steps = 0

    def _warn(self, text: str) -> None:
        if text not in self._told:
            self._told.add(text)
            warnings.warn(f"rank {self._rank}: {text}", RuntimeWarning, stacklevel=5)
