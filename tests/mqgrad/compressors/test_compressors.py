"""The contract of every compressor, by name, through the DDP hook on real ranks."""

import math

import averages
import models
import pytest
import torch
from ranks import run_cases
from scripted import Scripted

import mqgrad
from mqgrad.codecs.vector_codec import Feedback
from mqgrad.compatibility import check_compatible

CASES = [
    # specification, width, ‖mean − exact‖ / ‖exact‖ at most
    ("ecq-sgd", 3, 1.5),
    ("ecq-sgd:alpha=0.3,beta=0.9", 2, 3.0),
    ("dgc:ratio=0.05", 32, 2.0),
    ("dgc:ratio=0.05,clip=0.2", 32, 2.0),
    ("fp16", 16, 0.001),
    ("gravac:least_factor=5,least_gain=0.3,window=2,tolerance=0", 32, 1.5),
    ("gravac:base=dgc,least_factor=5,least_gain=0.3,window=2,tolerance=0", 32, 3.0),
    ("minmax:min_numel=4000", 2, 0.7),
    ("minmax:min_numel=4000", 8, 0.02),
    ("minmax:min_numel=4000,topology=star", 4, 0.2),
    ("onebit", 1, 1.5),
    ("onebit:topology=star", 1, 1.5),
    ("onebit-adam:warmup_iterations=2", 1, math.inf),  # Adam's direction
    ("powersgd:rank=4", 32, 0.9),
    ("quantized", 1, 3.0),
    ("quantized:topology=star", 2, 1.0),
    ("rotation", 1, 1.5),
    ("rotation", 4, 0.3),
    ("rotation:unbiased=true,error_feedback=false", 2, 0.8),
    ("sketched-sgd:ratio=0.05,columns=2", 32, 3.0),
    ("terngrad", 2, 3.0),
    ("top-k:0.05", 32, 1.5),
]


SPECS_AND_BITS = [(spec, bits) for spec, bits, _ in CASES]
RESUMED = [
    (spec, bits) for spec, bits in SPECS_AND_BITS if "clip=" not in spec
]  # which goes by DDP's buckets


@pytest.fixture(scope="module", params=[2, 4], ids="world_size={}".format)
def means(request: pytest.FixtureRequest) -> dict[tuple, tuple]:
    """The averaged and the exact mean gradient of each iteration, by specification and width, then by rank."""

    def rank_main(rank: int, spec: str, bits: int):
        return averages.means(spec, bits, rank, iterations=3, bucket_cap_mb=0.02)[0]

    return run_cases(rank_main, SPECS_AND_BITS, request.param, timeout=100)


@pytest.mark.parametrize(("spec", "bits", "tolerance"), CASES)
def test_every_rank_ends_with_the_same_bytes_near_the_exact_mean(
    means: dict[tuple, tuple], spec: str, bits: int, tolerance: float
) -> None:
    errors = []
    for iterations in zip(*means[spec, bits], strict=True):
        assert len({got.tobytes() for got, _ in iterations}) == 1
        got, exact = (torch.from_numpy(x) for x in iterations[0])
        errors.append(float((got - exact).norm() / exact.norm()))
    assert errors[-1] > 0  # the first iterations of some are exact
    assert max(errors) <= tolerance


@pytest.fixture(scope="module")
def resumed() -> dict[tuple, tuple]:
    """Gradients of a run that goes on and of one that was resumed, by specification and width, then by rank."""

    def rank_main(rank: int, spec: str, bits: int) -> tuple[list[bytes], list[bytes]]:
        return averages.straight_and_resumed(
            lambda: models.new_run(mqgrad.FixedBits(bits), compressor=spec), rank
        )

    return run_cases(rank_main, RESUMED, timeout=100)


@pytest.mark.parametrize(("spec", "bits"), RESUMED)
def test_a_resumed_run_continues_with_the_same_bytes(
    resumed: dict[tuple, tuple], spec: str, bits: int
) -> None:
    assert all(straight == again for straight, again in resumed[spec, bits])


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("minmax:min_numel=-1", "min_numel must be .*not -1"),
        ("minmax:bucket_size=8", "unknown argument 'bucket_size'; known: min_numel, topology"),
        (
            "quantized:topology=ring",
            "topology 'ring' is unknown; choose one of auto, measured, all-gather, sharded, star",
        ),
        ("minmax:topology=ring", "topology 'ring' is unknown; choose one of sharded, star"),
        ("quantized:bucket_size=96", "blocks of 32, .* need at least 64: choose a multiple of 64"),
        ("rotation:bucket_size=32", "blocks of 32, .* need at least 64"),
        ("onebit:bucket_size=12", "bucket_size 12 must be a positive multiple of 8"),
        ("powersgd:0", "rank must be .*not 0"),
        ("powersgd:start_iteration=-1", "start_iteration must be .*not -1"),
        ("powersgd:min_compression_rate=0.5", "min_compression_rate must be from 1.0 to inf, not 0.5"),
        ("dgc:0", "ratio must be above 0 and at most 1, not 0.0"),
        ("dgc:momentum=1", "momentum must be at least 0 and less than 1, not 1.0"),
        ("dgc:clip=nan", "clip must be .*not nan"),
        ("dgc:warmup_iterations=-1", "warmup_iterations must be .*not -1"),
        ("sketched-sgd:rows=4", "rows 4 must be odd"),
        ("sketched-sgd:columns=0", "columns must be a whole number of at least 1, not 0"),
        ("sketched-sgd:0.05", "2.5 times the elements of its parameter"),
        ("sketched-sgd:candidates=0", "candidates must be a whole number of at least 1, not 0"),
        ("top-k:2", "ratio must be above 0 and at most 1, not 2.0"),
        ("terngrad:clip=-1", "clip must be .*not -1.0"),
        ("terngrad:topology=ring", "topology 'ring' is unknown"),
        ("ecq-sgd:alpha=-1", "alpha must be a finite number .*not -1.0"),
        ("ecq-sgd:beta=inf", "beta must be a finite number .*not inf"),
        ("zip", "unknown compressor 'zip'; known: dgc, ecq-sgd, .*powersgd, .*quantized"),
    ],
)
def test_mistakes_are_named(spec: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        mqgrad.make_compressor(spec)


def test_uniform_levels_take_any_bucket_size_and_rotated_ones_blocks_of_64() -> None:
    for spec in (
        "qsgd:bucket_size=8",
        "quantized:bucket_size=96,rounding=stochastic",
        "quantized:bucket_size=320",
    ):
        mqgrad.make_compressor(spec)


def test_below_one_bit_there_is_error_feedback() -> None:
    """Most of a gradient never arrived without it."""
    compressor = mqgrad.make_compressor("quantized:error_feedback=false")
    assert min(compressor.widths) == 1
    with pytest.raises(ValueError, match=r"Goodput chooses among 1/2, 4 bits, and Quantized has 1, "):
        check_compatible(mqgrad.Goodput(widths=(1 / 2, 4)), compressor)


def test_a_first_width_that_the_compressor_lacks_is_refused_where_a_controller_tells_no_widths() -> None:
    check_compatible(Scripted([4, 1 / 2]), mqgrad.QSGD())
    with pytest.raises(ValueError, match=r"bit width 0\.5 is not supported; choose one of 1, "):
        check_compatible(Scripted([1 / 2, 4]), mqgrad.QSGD())


@pytest.mark.parametrize("spec", ["quantized:feedback_gain=1", "rotation:unbiased=true"])
@pytest.mark.parametrize("bits", [1, 2, 3])
def test_an_unbiased_rotation_has_its_own_feedback_gain_from_the_start(spec: str, bits: int) -> None:
    compressor = mqgrad.make_compressor(spec)
    assert not compressor.learns_gain(bits)
    x = torch.randn(2**16, generator=torch.Generator().manual_seed(0))
    codec = compressor.codec(bits)
    decoded = codec.decode(codec.encode(x, seed=1), x.numel())
    gamma = float((decoded - x).square().sum() / x.square().sum())
    alpha, beta = compressor.coefficients(compressor.push_gain, bits)
    assert beta == 1
    assert alpha == pytest.approx(1 / (1 + gamma), rel=0.01)


def test_the_default_feeds_back_slowly_at_1_to_8_bits_and_at_once_at_others() -> None:
    compressor = mqgrad.make_compressor("quantized")
    for bits in mqgrad.WIDTHS:
        alpha = 0.2 if 1 <= bits <= 8 else 1.0
        assert compressor.coefficients(compressor.push_gain, bits) == (alpha, 1.0)
    assert compressor.coefficients(compressor.push_gain, 4, of_deltas=True) == (1.0, 1.0)


@pytest.mark.parametrize("gain", [0, -0.1, 1.5, math.nan])
def test_a_feedback_gain_that_repays_nothing_or_too_much_is_refused(gain: float) -> None:
    with pytest.raises(ValueError, match=r"feedback_gain .*error_feedback=false"):
        mqgrad.make_compressor(f"quantized:feedback_gain={gain}")


@pytest.mark.parametrize("alpha", [0.1, 0.2, 1.0])
def test_what_feedback_adds_to_the_noise_is_what_its_note_says(alpha: float) -> None:
    """Note [Slow feedback], with an error that is white: that of rotated codes at 3 bits."""
    codec, steps = mqgrad.make_compressor("quantized").codec(3), 60
    generator = torch.Generator().manual_seed(0)
    residual, sent, gradients = torch.zeros(2**13), [], []
    for step in range(steps):
        gradients.append(torch.randn(len(residual), generator=generator))
        owed = residual.clone()
        payload = codec.encode(gradients[-1], step, feedback=Feedback(residual, alpha))
        sent.append(codec.decode(payload, len(residual)))
        own = sent[-1] - gradients[-1] - alpha * owed
    late = [(q - x).square().mean() for q, x in zip(sent[30:], gradients[30:], strict=True)]
    assert float(sum(late) / len(late) / own.square().mean()) == pytest.approx(2 / (2 - alpha), rel=0.05)
    assert float(residual.square().mean() / own.square().mean()) == pytest.approx(
        1 / (alpha * (2 - alpha)), rel=0.05
    )
    assert torch.allclose(sum(sent) + residual, sum(gradients), atol=1e-3)  # nothing is lost


def test_names_are_sorted_and_their_compressors_name_their_widths() -> None:
    names = mqgrad.compressor_names()
    assert list(names) == sorted(names)
    for name in names:
        compressor = mqgrad.make_compressor(name)
        assert isinstance(compressor, mqgrad.Compressor)
        assert set(compressor.widths) <= set(mqgrad.WIDTHS)
