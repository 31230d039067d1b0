"""The compiled ops: loaded if they were built, and for which devices they have kernels."""

import functools
import warnings
from pathlib import Path
from typing import Any, Literal

import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily

_NOT_COMPILED_FOR = ("no kernel image", "kernel image is invalid", "unsupported toolchain")
"""In what CUDA says of a launch on a GPU that a library has no code for."""


def _load_library() -> str | None:
    """Load the compiled ops; the reason if that is not possible."""
    libraries = sorted(Path(__file__).parent.glob("_C*.so"))
    if not libraries:
        return "it was not built: pip install -v --no-build-isolation shows why"
    try:
        torch.ops.load_library(libraries[0])
    except OSError as error:
        return str(error.__cause__ or error)  # torch's own error has the path only
    return None


_load_error = _load_library()

IMPLEMENTATION: Literal["extension", "reference"] = "extension" if _load_error is None else "reference"
"""What runs the ops on CPU tensors. Both give the same bytes, and the same figures of gradients but for
rounding; the reference is some fifty times slower."""


def _compiled_devices() -> tuple[str, ...]:
    if IMPLEMENTATION == "reference":
        return ()
    has_cuda = torch._C._dispatch_has_kernel_for_dispatch_key("mqgrad::encode_into", "CUDA")
    return ("cpu", "meta", "cuda") if has_cuda else ("cpu", "meta")


COMPILED_DEVICES = _compiled_devices()
"""Types of the devices whose tensors have compiled kernels; tensors of others go through the reference."""


def has_kernels(device: torch.device) -> bool:
    """Whether the compiled ops cover a device."""
    return device.type in COMPILED_DEVICES and (device.type != "cuda" or _is_compiled_for(device))


def _is_compiled_for(gpu: torch.device) -> bool:
    """The same as :func:`_can_launch`, which torch.compile cannot trace: it calls this instead."""
    return _can_launch(gpu)


# All that `torch.compiler.assume_constant_result` does, but to import Dynamo: that takes two seconds.
_is_compiled_for._dynamo_marked_constant = True  # type: ignore[attr-defined]


@functools.lru_cache
def _can_launch(gpu: torch.device) -> bool:
    """Whether the GPU is of an architecture that the kernels were compiled for, or of a newer one: which those are,
    TORCH_CUDA_ARCH_LIST may have said. One byte is decoded, which is not waited for; really so, also where shapes
    are traced."""
    try:
        with unset_fake_temporarily():
            torch.ops.mqgrad.decode(torch.zeros(5, dtype=torch.uint8, device=gpu), 1, 8, 1)
    except RuntimeError as error:
        if any(text in str(error) for text in _NOT_COMPILED_FOR):
            return False
        raise
    return True


def note_written(*written: torch.Tensor | None) -> None:
    """Tell autograd, before it happens, that an op writes to tensors, so that a backward pass which has saved one of
    them raises. Of torch's own ops autograd knows that by itself.

    Raises:
        RuntimeError: a gradient is to flow through one of them. It would flow as if nothing had been written.
    """
    tensors = [tensor for tensor in written if tensor is not None]
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
        raise RuntimeError(
            "this writes to a tensor that requires grad, and no gradient would flow through that: detach() the "
            "tensor, or call this under torch.no_grad()"
        )
    torch.autograd.graph.increment_version(tensors)


def fake_writers(*names: str) -> None:
    """Register, for tracing, ops that write to their arguments and return nothing."""
    for name in names:
        torch.library.register_fake(f"mqgrad::{name}", lambda *_: None)


def has_cpu_ops(device: torch.device) -> bool:
    """Whether the device can use what the compiled ops do on the CPU only: read and write scattered vectors, and fuse
    the steps of rotated codes at any bucket size. Elsewhere several plain ops do that work."""
    return IMPLEMENTATION == "extension" and device.type == "cpu"


@functools.lru_cache
def warn_of_reference(device_type: str) -> None:
    reason = f"could not be loaded ({_load_error})" if _load_error else "was built without kernels for it"
    warnings.warn(
        f"mqgrad runs on its slow torch reference on {device_type}: the C++ extension {reason}",
        RuntimeWarning,
        stacklevel=4,
    )


def kernels(device: torch.device, reference: Any) -> Any:
    """The compiled ops if they cover the device, else the module ``reference``, which runs anywhere."""
    if has_kernels(device):
        return torch.ops.mqgrad
    warn_of_reference(device.type)
    return reference
