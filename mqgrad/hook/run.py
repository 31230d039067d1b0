"""What a run on one rank consists of, put together."""

import dataclasses

from ..collectives.comm_thread import CommThread
from ..collectives.named_work import could_be_world
from ..collectives.transport import Transport
from ..compressors.base import Compressor
from .decisions import Decisions
from .direct import DirectAverages
from .interval_position import IntervalPosition
from .iteration import Iteration
from .iteration_clock import IterationClock
from .layout_table import LayoutTable
from .local_rounds import LocalRounds
from .measurements import Measurements
from .param_groups import HasParamGroups
from .queued_collectives import QueuedCollectives
from .round_settings import RoundSettings
from .second_moment import FrozenSecondMoment
from .shared_parts import SharedParts


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """Of a :class:`mqgrad.CompressionState`."""

    shared: SharedParts
    iteration: Iteration
    """The one under way: what the communication thread does."""
    thread: CommThread
    queued: QueuedCollectives
    """Buckets and others that wait for that thread."""
    direct: DirectAverages
    """Buckets that need not."""
    rounds: LocalRounds


def assemble_run(
    transport: Transport,
    compressor: Compressor,
    decisions: Decisions,
    *,
    seed: int,
    rounds: RoundSettings,
    optimizer: HasParamGroups | None,
    second_moment: FrozenSecondMoment | None,
) -> Run:
    """Build one from what a script chooses; see :class:`mqgrad.CompressionState`."""
    shared = SharedParts(
        configuration=_configuration(transport, compressor, seed, rounds, second_moment),
        transport=transport,
        compressor=compressor,
        decisions=decisions,
        layouts=LayoutTable(
            bucket_size=compressor.bucket_size, world_size=transport.world_size, rank=transport.global_rank
        ),
        position=IntervalPosition(decisions),
        measured=Measurements(),
        clock=IterationClock(),
    )
    iteration = Iteration(
        shared, seed=seed, of_deltas=rounds.are_wanted, optimizer=optimizer, second_moment=second_moment
    )
    thread = CommThread(transport.device)
    queued = QueuedCollectives(shared, iteration, thread)
    return Run(
        shared=shared,
        iteration=iteration,
        thread=thread,
        queued=queued,
        direct=DirectAverages(transport, iteration, thread, shared.clock),
        rounds=LocalRounds(rounds, shared.layouts, queued),
    )


def _configuration(
    transport: Transport,
    compressor: Compressor,
    seed: int,
    rounds: RoundSettings,
    second_moment: FrozenSecondMoment | None,
) -> str:
    world_size = transport.world_size
    frozen = "" if second_moment is None else f", {second_moment.text}"
    return f"{compressor}, {seed=}, {world_size=}{_part_of_job(transport)}, {rounds.text}{frozen}"


def _part_of_job(transport: Transport) -> str:
    """Where other ranks of the job have other models."""
    ranks = transport.global_ranks
    return "" if could_be_world(ranks) else f", ranks={'+'.join(map(str, ranks))}"
