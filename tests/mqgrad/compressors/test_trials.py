"""Trial compression: what controllers are told of widths that are not in use."""

import models
import numpy as np
import pytest
import torch
from layouts import bucket_of, layout_of
from ranks import run_ranks
from scripted import Scripted

import mqgrad
from mqgrad.codecs.codec import codec_at
from mqgrad.codecs.rotation import RotationCodec
from mqgrad.compressors.base import BucketWork
from mqgrad.hook.layout_table import LayoutTable


def trials_of(rank: int, compressor: str, widths: tuple[float, ...]):
    """Of one interval: the trials of each parameter, and this rank's gradients at its last iteration."""
    controller = Scripted([4], wants_parameters=True, trial_widths=widths)
    model = models.small_model()
    state = mqgrad.CompressionState(controller, compressor=compressor)
    ddp = models.compressed_ddp(model, state)
    state.mark()
    for iteration in range(2):
        model.zero_grad()
        with ddp.no_sync():
            models.backward(ddp, rank, iteration)
        own = {id(p): p.grad.flatten().clone() for p in model.parameters()}
        model.zero_grad()
        state.step(models.backward(ddp, rank, iteration))
    state.close()
    gradients = [own[id(p)].numpy() for p in state.parameters]
    return [[tuple(t) for t in p.trials] for p in controller.seen[0].parameters], gradients


def test_the_errors_of_every_width_are_those_of_the_code_averaged_over_ranks() -> None:
    widths = (1, 4, 32)
    results = run_ranks(lambda rank: trials_of(rank, "quantized", widths))
    assert results[0][0] == results[1][0]
    codecs = (RotationCodec(bits=1, bucket_size=512, unbiased=True), codec_at(4), codec_at(32))
    for k, trials in enumerate(results[0][0]):
        for codec, trial in zip(codecs, trials, strict=True):
            expected = []
            for _, gradients in results:
                x = torch.from_numpy(gradients[k])
                whole = torch.nn.functional.pad(x, (0, -len(x) % 512))
                coded = codec.decode(codec.encode(whole), len(whole))[: len(x)]
                expected.append([float((coded - x).square().sum()), float(coded.square().sum())])
            assert trial == pytest.approx(np.mean(expected, axis=0), rel=1e-4, abs=1e-12)


def test_a_compressor_without_trials_gives_none() -> None:
    for trials, _ in run_ranks(lambda rank: trials_of(rank, "minmax", (2, 4))):
        assert trials == [[]] * 8


@pytest.mark.parametrize("spec", ["quantized", "qsgd", "ecq-sgd", "rotation"])
def test_trying_changes_neither_the_gradients_nor_the_compressor(spec: str) -> None:
    compressor = mqgrad.make_compressor(spec)
    gradient = torch.randn(40, 30, generator=torch.Generator().manual_seed(0))
    layout = layout_of([gradient], bucket_size=512, world_size=2)
    work, before = BucketWork(gradient.flatten(), [gradient], layout), gradient.clone()
    state = str(compressor.state_dict())
    errors = []
    for bits in (1, 2, 3, 4, 32):
        (values,) = compressor.tried(work, bits)
        errors.append(float((values - gradient.flatten()).square().sum()))
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] == 0
    assert gradient.equal(before)
    assert str(compressor.state_dict()) == state
    assert compressor.tried(work, 5 if spec == "rotation" else 0.3) is None


@pytest.mark.parametrize("spec", ["onebit", "qsgd"])
def test_elements_that_do_not_fill_a_bucket_are_tried_as_if_they_did(spec: str) -> None:
    """Zeros behind them would move 1-bit SGD's means, and add noise to stochastic rounding at 1 bit."""
    gradient = torch.tensor([-1.0, -1.0, 1.0, 1.0]).repeat(11)
    layout = layout_of([gradient], bucket_size=32, world_size=2)
    work = BucketWork(gradient, [gradient], layout)
    (values,) = mqgrad.make_compressor(f"{spec}:bucket_size=32").tried(work, 1)
    assert torch.equal(values, gradient)


@pytest.mark.parametrize("spec", ["quantized", "qsgd", "ecq-sgd"])
def test_what_is_tried_does_not_depend_on_ddps_buckets(spec: str) -> None:
    """Random numbers went by the place in the bucket, and after a restart buckets are others for an iteration."""
    compressor = mqgrad.make_compressor(spec)
    first, second = torch.randn(2, 1000, generator=torch.Generator().manual_seed(0)).unbind()
    table = LayoutTable(bucket_size=512, world_size=2)
    together, alone = [
        compressor.tried(BucketWork(gradients[0], gradients, bucket_of(table, gradients)[0]), 2)
        for gradients in ([first, second], [second])
    ]
    assert torch.equal(together[1], alone[0])


@pytest.mark.parametrize(("world_size", "parts"), [(2, 1), (4, 4)])
def test_elements_compete_below_one_bit_where_they_do_on_the_way_to_the_others(
    world_size: int, parts: int
) -> None:
    """With two ranks codes are gathered, and the whole bucket is one; with more it is coded shard by shard."""
    noise = torch.randn(4096, generator=torch.Generator().manual_seed(0))
    small, large = noise[:2048] / 100, noise[2048:].clone()
    layout = layout_of([small, large], bucket_size=512, world_size=world_size)
    tried = mqgrad.make_compressor("quantized").tried(BucketWork(small, [small, large], layout), 1 / 16)
    vector = layout.pack([small, large])
    codec = codec_at(1 / 16)
    coded = [codec.decode(codec.encode(part), len(part)) for part in vector.chunk(parts)]
    assert all(map(torch.equal, tried, layout.views(torch.cat(coded))))
    assert bool(tried[0].any()) == (parts == 4)
