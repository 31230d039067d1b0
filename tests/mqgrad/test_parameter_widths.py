"""A width per parameter: what is sent, counted, agreed on and saved."""

import copy
import io
import itertools

import averages
import models
import pytest
import torch
from ranks import run_ranks

import mqgrad
from mqgrad.compressors.runs import Run, shard_runs
from mqgrad.layout import Layout
from mqgrad.statistics import IntervalStatistics, ParameterStatistics, RankStatistics
from mqgrad.widths import check_parameter_widths

NUM_PARAMETERS = 8  # of models.small_model: four layers, weight and bias


class Mixed:
    """Plays lists of widths, one per parameter, and remembers what it saw."""

    interval = 2
    initial_bits = 4
    wants_parameters = True

    def __init__(self, *decisions: object) -> None:
        self.decisions = decisions
        self.made = 0
        self.seen: list[IntervalStatistics] = []

    def decide(self, statistics: IntervalStatistics) -> object:
        self.seen.append(statistics)
        self.made += 1
        return self.decisions[(self.made - 1) % len(self.decisions)]

    def state_dict(self) -> dict:
        return {"made": self.made}

    def load_state_dict(self, state: dict) -> None:
        self.made = state["made"]


MIXED = [1, 8, 2, 32, 4, 16, 3, 5]
OTHER = [32, 2, 2, 2, 8, 8, 1, 32]


def new_run(controller: object, **state_args: object):
    model = models.small_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    state = mqgrad.CompressionState(controller, **state_args)
    return models.compressed_ddp(model, state, bucket_cap_mb=0.02), optimizer, state


@pytest.mark.parametrize("world_size", [2, 4])
@pytest.mark.parametrize("topology", ["sharded", "star"])
def test_every_rank_ends_with_the_same_bytes_near_the_exact_mean(world_size: int, topology: str) -> None:
    """Each parameter errs as much as its own width lets it: 32 bits not at all."""

    def rank_main(rank: int):
        compressor = f"quantized:error_feedback=false,topology={topology}"
        ddp, optimizer, state = new_run(None, compressor=compressor)
        exact_model = copy.deepcopy(ddp.module)
        models.train(ddp, optimizer, state, rank, range(1))
        exact_model.load_state_dict(ddp.module.state_dict())
        # Weights at 32 bits, biases at 8.
        state.set_width([32 if parameter.ndim == 2 else 8 for parameter in state.parameters])
        optimizer.zero_grad()
        models.backward(ddp, rank, 1)
        exact = [0.0] * NUM_PARAMETERS
        for other in range(world_size):
            exact_model.zero_grad()
            models.backward(exact_model, other, 1)
            exact = [e + p.grad / world_size for e, p in zip(exact, exact_model.parameters(), strict=True)]
        state.close()
        errors = [
            ((p.grad - e).norm() / e.norm()).item()
            for p, e in zip(ddp.module.parameters(), exact, strict=True)
        ]
        return models.gradient_of(ddp.module).numpy().tobytes(), errors, state.bits

    results = run_ranks(rank_main, world_size)
    assert len({got for got, _, _ in results}) == 1
    weights, biases = results[0][1][::2], results[0][1][1::2]
    assert max(weights) < 1e-6
    assert all(1e-5 < error < 0.02 for error in biases)
    num_weights, num_biases = 3 * 4096 + 256, 3 * 64 + 4
    mean_bits = (32 * num_weights + 8 * num_biases) / (num_weights + num_biases)
    assert results[0][2] == pytest.approx(mean_bits)


@pytest.mark.parametrize(
    ("compressor", "decisions"),
    [
        ("quantized", (MIXED, OTHER, 2, [3] * NUM_PARAMETERS)),
        ("qsgd", (MIXED, OTHER, 2, [3] * NUM_PARAMETERS)),
        ("qsgd:error_feedback=true,topology=star", (MIXED, OTHER, 2, [3] * NUM_PARAMETERS)),
        ("ecq-sgd", (MIXED, OTHER)),
        ("quantized:rounding=stochastic", (2, 3, 4)),
    ],
)
def test_an_interrupted_run_continues_with_the_same_bytes(compressor: str, decisions: tuple) -> None:
    """DDP has other buckets in the resumed run; one decision is a single width, and one that width for each.

    The first iteration after the restart is one at which the gains of feedback are measured.
    """

    def rank_main(rank: int):
        def start():
            controller = Mixed(*decisions)
            return new_run(controller, compressor=compressor)

        model, optimizer, state = start()
        state.mark()
        models.train(model, optimizer, state, rank, range(5))
        file = io.BytesIO()
        saved = {
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "state": state.state_dict(),
        }
        torch.save(saved, file)
        straight = models.train(model, optimizer, state, rank, range(5, 13))
        state.close()
        file.seek(0)
        saved = torch.load(file)
        model, optimizer, state = start()
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        state.load_state_dict(saved["state"])
        bits = state.bits
        resumed = models.train(model, optimizer, state, rank, range(5, 13))
        state.close()
        return straight == resumed, straight[-1], bits

    first, second = run_ranks(rank_main)
    assert first[0]
    assert first == second
    assert first[2] == pytest.approx(second[2])


def test_feedback_repays_what_a_narrow_width_left_out() -> None:
    """After 32 bits for all, what was applied is the sum of the exact means."""

    def rank_main(rank: int):
        model = torch.nn.Sequential(torch.nn.Linear(700, 3), torch.nn.Linear(3, 2, bias=False))
        state = mqgrad.CompressionState(None)
        ddp = models.compressed_ddp(model, state)
        applied, exact = 0.0, 0.0
        for iteration, bits in enumerate(
            [4, [1, 2, 3], [32, 8, 1], [2, 32, 32], [32, 32, 16], [32, 1, 32], 32]
        ):
            state.set_width(bits)
            xs = [
                torch.randn(5, 700, generator=torch.Generator().manual_seed(9 * iteration + r))
                for r in range(2)
            ]
            model.zero_grad()
            ddp(xs[rank]).sum().backward()
            applied = applied + models.gradient_of(model)
            for x in xs:
                model.zero_grad()
                model(x).sum().backward()
                exact = exact + models.gradient_of(model) / 2
        state.close()
        return (applied - exact).abs().max().item()

    assert max(run_ranks(rank_main)) < 1e-4


def test_bytes_are_counted_as_sent_and_bits_by_element() -> None:
    def rank_main(rank: int):
        model = torch.nn.Sequential(
            torch.nn.Linear(512, 3, bias=False), torch.nn.Tanh(), torch.nn.Linear(3, 512, bias=False)
        )
        state = mqgrad.CompressionState(None)
        ddp = models.compressed_ddp(model, state)
        ddp(torch.randn(2, 512)).sum().backward()
        before = copy.copy(state.totals)
        state.set_width([2, 8])
        ddp(torch.randn(2, 512)).sum().backward()
        state.close()
        return state.totals.since(before).wire_bytes, state.totals.bit_iterations - before.bit_iterations

    results = run_ranks(rank_main)
    # Six scale buckets: rank 0 owns the three at 2 bits, rank 1 those at 8; each has a scale of 4 bytes. Two bits are
    # rotated, with a seed of 8 bytes.
    low, high = 8 + 3 * (512 * 2 // 8 + 4), 3 * (512 * 8 // 8 + 4)
    agreement = averages.AGREEMENT_BYTES
    assert [sent for sent, _ in results] == [high + low + agreement, low + high + agreement]
    assert [bits for _, bits in results] == [5, 5]


def test_statistics_by_parameter_are_those_of_all_ranks() -> None:
    def rank_main(rank: int):
        controller = Mixed(4)
        model, optimizer, state = new_run(controller)
        state.mark()
        models.train(model, optimizer, state, rank, range(1))
        exact_model = copy.deepcopy(model.module)
        models.train(model, optimizer, state, rank, range(1, 2))
        models.backward(exact_model.requires_grad_(), rank, 1)
        models.train(model, optimizer, state, rank, range(2, 3))
        state.close()
        exact_model.zero_grad()
        models.backward(exact_model, rank, 1)
        figures = []
        names = {id(p): name for name, p in model.module.named_parameters()}
        for name in [names[id(p)] for p in state.parameters]:
            parameter = exact_model.get_parameter(name)
            flat = parameter.grad.flatten()
            chunks = flat.split(512)
            peak = sum(len(chunk) * chunk.abs().max().item() ** 2 for chunk in chunks)
            figures.append((flat.numel(), flat.square().sum().item(), peak))
        return controller.seen[0].parameters, figures, controller.seen[0].peak_energy

    (seen, first, _), (other, second, _) = run_ranks(rank_main)
    assert seen == other
    assert len(seen) == NUM_PARAMETERS
    for found, one, two in zip(seen, first, second, strict=True):
        assert found.numel == one[0]
        assert found.norm_sq == pytest.approx((one[1] + two[1]) / 2, rel=1e-4)
        assert found.peak_energy == pytest.approx((one[2] + two[2]) / 4, rel=1e-4)


def test_nobody_who_did_not_ask_gets_parameters() -> None:
    def rank_main(rank: int):
        controller = Mixed(4)
        controller.wants_parameters = False
        model, optimizer, state = new_run(controller)
        state.mark()
        models.train(model, optimizer, state, rank, range(3))
        state.close()
        return controller.seen[0].parameters

    assert run_ranks(rank_main) == [(), ()]


def test_rank_zero_decides_even_if_the_others_want_one_width() -> None:
    def rank_main(rank: int):
        model, optimizer, state = new_run(Mixed(MIXED if rank == 0 else 8))
        state.mark()
        models.train(model, optimizer, state, rank, range(3))
        state.close()
        return state.parameter_bits

    assert run_ranks(rank_main) == [tuple(MIXED)] * 2


def test_ranks_with_different_widths_are_detected_before_anything_is_sent() -> None:
    def rank_main(rank: int):
        model, optimizer, state = new_run(None)
        models.train(model, optimizer, state, rank, range(1))
        state.set_width(MIXED if rank == 0 else OTHER)
        with pytest.raises(RuntimeError, match=r"bit width \(rank 0: \d+, rank 1: \d+\)"):
            models.train(model, optimizer, state, rank, range(1))
        state.close()

    run_ranks(rank_main)


def test_a_wrong_decision_names_what_is_wrong() -> None:
    def rank_main(rank: int):
        model, optimizer, state = new_run(Mixed([2, 3]))
        state.mark()
        with pytest.raises(RuntimeError, match="2 bit widths for 8 parameters"):
            models.train(model, optimizer, state, rank, range(3))
        state.close()

    run_ranks(rank_main, world_size=1)


@pytest.mark.parametrize(
    ("bits", "mixed", "message"),
    [
        ([2, 9], (2, 4), "bit width 9 is not supported; choose one of 2, 4"),
        ([2, 0.5], (2, 4), "bit width 0.5"),
        ([2], (2, 4), "1 bit widths for 2 parameters"),
        ([], (2, 4), "0 bit widths for 2 parameters"),
        ([2, 4], (), "takes one bit width for all parameters"),
        ([16, 16], (2, 4), "bit width 16"),
    ],
)
def test_widths_are_checked(bits: list, mixed: tuple, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_parameter_widths(bits, (0.5, 2, 4), mixed, 2)


def test_equal_widths_are_one_width() -> None:
    assert check_parameter_widths([4, 4], (2, 4), (2, 4), 2) == 4
    assert check_parameter_widths([0.5, 0.5], (0.5, 2), (2,), 2) == 0.5
    assert check_parameter_widths([2, 4], (2, 4), (2, 4), 2) == (2, 4)


def layout(counts: list[int], world_size: int) -> Layout:
    """Parameters of so many scale buckets of 8 elements."""
    shard = -(-sum(counts) // world_size)
    return Layout(
        keys=tuple(range(len(counts))),
        numels=tuple(8 * count for count in counts),
        offsets=tuple(8 * sum(counts[:i]) for i in range(len(counts))),
        numel=8 * shard * world_size,
        shard_numel=8 * shard,
        bucket_ids=torch.arange(shard * world_size),
        padding=torch.empty(0, dtype=torch.int64),
        padded_with=torch.empty(0, dtype=torch.int64),
    )


def test_runs_are_cut_at_shards_and_joined_where_widths_are_equal() -> None:
    runs = shard_runs(layout([1, 3, 1, 2], world_size=2), 0, (2, 4, 4, 8))
    assert runs == [
        [Run(slice(0, 8), 2), Run(slice(8, 32), 4)],
        [Run(slice(32, 40), 4), Run(slice(40, 56), 8), Run(slice(56, 64), 2)],  # the last holds no parameter
    ]
    assert shard_runs(layout([1, 3], world_size=2), 4, None) == [
        [Run(slice(0, 16), 4)],
        [Run(slice(16, 32), 4)],
    ]


def test_runs_cover_every_element_once() -> None:
    for counts in itertools.product([1, 2, 5], repeat=3):
        for world_size in (1, 2, 4):
            shards = shard_runs(layout(list(counts), world_size), 0, (1, 32, 1))
            elements = [i for runs in shards for run in runs for i in range(run.part.start, run.part.stop)]
            assert elements == list(range(layout(list(counts), world_size).numel))


def test_rows_of_parameters_follow_their_keys() -> None:
    statistics = RankStatistics(parameters={1: (3, 4.0, 8.0), 0: (5, 1.0, 2.0)})
    rows = torch.stack([statistics.parameter_rows(), 3 * statistics.parameter_rows()])
    rows[1, :, 0] /= 3
    assert ParameterStatistics.from_rows(rows) == (
        ParameterStatistics(numel=5, norm_sq=2.0, peak_energy=2.0),
        ParameterStatistics(numel=3, norm_sq=8.0, peak_energy=8.0),
    )
