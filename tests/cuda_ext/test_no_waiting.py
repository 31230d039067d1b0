"""What torch does on CUDA beside the kernels, tried on the CPU: nothing in it has the host wait for the GPU."""

import pytest
import torch
from built import needs_extension
from torch.utils._python_dispatch import TorchDispatchMode

from mqgrad import cuda_ext
from mqgrad.cuda_ext import library, reference_figures, uniform

WAITING = {
    torch.ops.aten.lift_fresh.default: "copies a number from the host, as torch.tensor() does",
    torch.ops.aten._local_scalar_dense.default: "reads a number",
    torch.ops.aten.nonzero.default: "has a result whose size depends on values",
}


class NoWaiting(TorchDispatchMode):
    """Fails where an op would wait."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        assert func not in WAITING, f"{func} {WAITING[func]}"
        return func(*args, **(kwargs or {}))


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a device that lacks the ops which the CPU alone has."""
    monkeypatch.setattr(library, "has_cpu_ops", lambda device: False)


@needs_extension
@pytest.mark.usefixtures("elsewhere")
def test_rotated_codes_and_their_means() -> None:
    x, residual, settings = torch.randn(1000), torch.zeros(1000), (2, 512, True, 1)
    with NoWaiting():
        payload = cuda_ext.encode_rotated(x, *settings, residual=residual, alpha=0.7)
        payloads = payload.repeat(3, 1)
        cuda_ext.reduce_encode_rotated(payloads, 1000, *settings, residual=residual)
        cuda_ext.decode_rotated_mean_into(residual, payloads, 2, 512)


@needs_extension
@pytest.mark.usefixtures("elsewhere")
def test_vectors_in_several_tensors() -> None:
    x = cuda_ext.Scattered([torch.randn(500), torch.randn(30)], [0, 512], 600)
    with NoWaiting():
        payloads = uniform.encode(x, 4, 512, False, 1).repeat(2, 1)
        uniform.decode_into(x, payloads[0], 4, 512)


@needs_extension
@pytest.mark.usefixtures("elsewhere")
def test_what_a_sparse_payload_is_decoded_to_is_checked() -> None:
    payload = cuda_ext.sparse_encode(torch.randn(100), 4)
    for error, out in (
        (TypeError, torch.zeros(100, dtype=torch.int64)),
        (ValueError, torch.zeros(1, 100)),
        (ValueError, torch.zeros(200)[::2]),
        (ValueError, torch.zeros(100, device="meta")),
    ):
        with pytest.raises(error, match="out "):
            cuda_ext.sparse_decode_into(out, payload, 4)
    needed = torch.zeros(100, requires_grad=True) * 1
    with pytest.raises(RuntimeError, match="requires grad"):
        cuda_ext.sparse_decode_into(needed, payload, 4)
    found = torch.full((100,), 7.0)
    cuda_ext.sparse_decode_into(found, payload, 4)
    assert torch.equal(found, cuda_ext.sparse_decode(payload, 100, 4))


def test_figures_of_gradients() -> None:
    with NoWaiting():
        reference_figures.gradient_figures([torch.randn(1000)], [3], 512, seed=1)
