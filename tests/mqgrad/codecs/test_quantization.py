"""The public quantize function. The ops themselves are tested in tests/cuda_ext."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import mqgrad


@settings(max_examples=60)
@given(
    bits=st.sampled_from(mqgrad.WIDTHS),
    shape=st.lists(st.integers(0, 40), max_size=3),
    dtype=st.sampled_from([torch.float16, torch.bfloat16, torch.float32, torch.float64]),
    rounding=st.sampled_from(["nearest", "stochastic"]),
    seed=st.integers(-(2**63), 2**63 - 1),
)
def test_shape_dtype_and_size_for_any_tensor(bits, shape, dtype, rounding, seed) -> None:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(dtype)
    q = mqgrad.quantize(x, bits, bucket_size=64, rounding=rounding, seed=seed)
    y = q.dequantize()
    assert y.shape == x.shape
    assert y.dtype == dtype
    n = x.numel()
    if bits < 1:  # one entry, at least, is sent
        assert q.wire_bytes <= max(n * bits / 8, 8 + 8)  # header, entry
    else:
        assert q.wire_bytes == (n * bits // 8 if bits >= 16 else -(-n * bits // 8) + 4 * -(-n // 64))
    if bits == 32:
        assert torch.equal(y, x.float().to(dtype))


def test_strided_input_equals_its_contiguous_copy() -> None:
    x = torch.randn(64, 48)
    assert torch.equal(mqgrad.quantize(x.T, 4).payload, mqgrad.quantize(x.T.contiguous(), 4).payload)


@pytest.mark.parametrize("dtype", [torch.int32, torch.bool, torch.complex64])
def test_non_floating_tensors_are_refused(dtype: torch.dtype) -> None:
    with pytest.raises(TypeError, match=str(dtype)):
        mqgrad.quantize(torch.zeros(4, dtype=dtype), 4)


@pytest.mark.parametrize("bits", [0, 9, 12, 64, -1, True, 2.5])
def test_unknown_widths_are_refused(bits: object) -> None:
    with pytest.raises(ValueError, match="bit width"):
        mqgrad.quantize(torch.zeros(4), bits)  # type: ignore[arg-type]


def test_unknown_rounding_and_bucket_size_are_refused() -> None:
    with pytest.raises(ValueError, match="'up'"):
        mqgrad.quantize(torch.zeros(4), 4, rounding="up")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="bucket_size 7"):
        mqgrad.quantize(torch.zeros(4), 4, bucket_size=7)


@pytest.mark.parametrize("bits", [1 / 4, 4, 16, 32])
def test_what_is_done_to_the_approximation_leaves_the_code_as_it_was(bits: float) -> None:
    coded = mqgrad.quantize(torch.linspace(-1, 1, 100), bits)
    first = coded.dequantize()
    expected = first.clone()
    first.zero_()
    assert torch.equal(coded.dequantize(), expected)


def test_importing_mqgrad_brings_in_no_training_packages() -> None:
    import subprocess
    import sys

    code = "import sys, mqgrad; print(sorted({'gymnasium', 'stable_baselines3', 'tensorboard'} & set(sys.modules)))"
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd="/", check=True)
    assert output.stdout.strip() == "[]"
