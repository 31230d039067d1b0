"""1-bit SGD: the code by hand, its contraction, and what travels."""

import averages
import models
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from ranks import run_ranks

import mqgrad
from mqgrad.codecs import bit_planes
from mqgrad.codecs.onebit import OneBitCodec
from mqgrad.codecs.vector_codec import Feedback
from mqgrad.cuda_ext import CHECKSUM_BYTES


@given(bits=st.integers(1, 8), groups=st.integers(0, 40), seed=st.integers(0, 1000))
def test_packed_codes_come_back(bits: int, groups: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    codes = torch.randint(0, 2**bits, (8 * groups,), generator=generator, dtype=torch.uint8)
    packed = bit_planes.pack(codes, bits)
    assert packed.numel() == bits * groups
    assert torch.equal(bit_planes.unpack(packed, bits), codes)


def test_the_values_are_the_means_of_the_negatives_and_of_the_others() -> None:
    x = torch.tensor([-1.0, -3.0, 0.0, 2.0, 4.0, 0.0, 0.0, 0.0] + [-1.0] * 8 + [0.0] * 8)
    codec = OneBitCodec(8)
    decoded = codec.decode(codec.encode(x), 24)
    assert decoded.tolist() == [-2.0, -2.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0] + [-1.0] * 8 + [0.0] * 8


def test_what_is_owed_is_not_rounded_to_the_size_of_what_is_sent() -> None:
    """The difference of a value and its code, both large, is exact; the residual is small beside them."""
    generator = torch.Generator().manual_seed(0)
    x, owed = 1 + 1e-4 * torch.rand(512, generator=generator), 1e-4 * torch.rand(512, generator=generator)
    codec, residual = OneBitCodec(512), owed.clone()
    payload = codec.encode(x, feedback=Feedback(residual, 1.0, 0.5))
    expected = 0.5 * owed.double() + x.double() - codec.decode(payload, 512).double()
    assert (residual - expected).abs().max() < 1e-10


def test_a_small_mean_beside_a_large_one_is_not_lost() -> None:
    x, codec = torch.tensor([1e4] * 511 + [-1e-4]), OneBitCodec(512)
    assert codec.decode(codec.encode(x), 512)[-1] == x[-1]


@given(seed=st.integers(0, 10_000), sparsity=st.floats(0, 0.99), shift=st.floats(-3, 3))
def test_the_code_is_contractive(seed: int, sparsity: float, shift: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(256, generator=generator) + shift
    x[torch.rand(256, generator=generator) < sparsity] = 0
    codec = OneBitCodec(64)
    error = codec.decode(codec.encode(x), 256) - x
    for part, whole in zip(error.split(64), x.split(64), strict=True):
        assert part.norm() < whole.norm() or whole.norm() == 0


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_a_bucket_that_is_not_finite_decodes_to_nan_and_owes_nothing(bad: float) -> None:
    x, residual, codec = torch.ones(16), torch.full((16,), 0.5), OneBitCodec(8)
    x[3] = bad
    decoded = codec.decode(codec.encode(x, feedback=Feedback(residual)), 16)
    assert decoded[:8].isnan().all()
    assert decoded[8:].tolist() == [1.5] * 8
    assert residual.tolist() == [0.5] * 8 + [0.0] * 8


def test_a_payload_of_the_wrong_length_is_refused() -> None:
    with pytest.raises(ValueError, match="payload of 9 bytes does not hold 16 elements"):
        OneBitCodec(8).decode(torch.zeros(9, dtype=torch.uint8), 16)


def test_bytes_are_those_of_signs_and_means() -> None:
    def rank_main(rank: int):
        model = torch.nn.Linear(512, 64, bias=False)
        state = mqgrad.CompressionState(mqgrad.FixedBits(1), compressor="onebit")
        ddp = models.compressed_ddp(model, state)
        ddp(torch.randn(2, 512)).sum().backward()
        state.close()
        return state.totals.wire_bytes

    n = 512 * 64
    payload = n // 8 + 8 * n // 512  # of all elements, to the other rank
    assert run_ranks(rank_main) == [averages.AGREEMENT_BYTES + payload + CHECKSUM_BYTES] * 2


@pytest.mark.parametrize("world_size", [2, 3])  # gathered, and through shards
def test_a_parameter_shorter_than_a_bucket_is_sent_what_it_owes(world_size: int) -> None:
    """The rest of its bucket repeats its elements, with what they owe: else they would pay a quarter of that."""
    gradient = torch.tensor([[1.0], *[[0.1]] * 9])

    def rank_main(rank: int) -> float:
        model = torch.nn.Linear(1, 10, bias=False)
        state = mqgrad.CompressionState(mqgrad.FixedBits(1), compressor="onebit")
        ddp = models.compressed_ddp(model, state)
        applied = 0.0
        for _ in range(60):
            model.zero_grad()
            (ddp(torch.ones(1, 1)) @ gradient).sum().backward()
            applied += float(model.weight.grad[0])
        state.close()
        return applied / 60

    assert run_ranks(rank_main, world_size)[0] == pytest.approx(1.0, abs=0.1)


def test_what_one_step_leaves_out_the_next_ones_send() -> None:
    """Fed the same gradients, the mean of what is applied nears the truth; without feedback it would stay away."""

    def rank_main(rank: int):
        model = torch.nn.Linear(100, 7, bias=False)
        state = mqgrad.CompressionState(mqgrad.FixedBits(1), compressor="onebit")
        ddp = models.compressed_ddp(model, state)
        applied, errors = 0.0, []
        x = [torch.randn(1, 100, generator=torch.Generator().manual_seed(r)) for r in range(2)]
        for iteration in range(1, 61):
            model.zero_grad()
            ddp(x[rank]).sum().backward()
            applied = applied + model.weight.grad[0]
            errors.append(float((applied / iteration - (x[0] + x[1])[0] / 2).norm()))
        state.close()
        return errors

    errors = run_ranks(rank_main)[0]
    assert errors[-1] < errors[0] / 4
