"""The ops called without the package's checks, with an argument or two that do not fit: refused, or computed."""

from typing import Any

import pytest
import torch
from built import needs_extension
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from mqgrad import cuda_ext

ALL = [name for name in torch._C._dispatch_get_all_op_names() if name.startswith("mqgrad::")]
OPS = sorted(name.removeprefix("mqgrad::") for name in ALL)
pytestmark = needs_extension

ROWS, COLUMNS = 8, 5
NUMEL, BITS, BUCKET = ROWS * COLUMNS, 3, 16
SCALARS: dict[str, Any] = {
    "numel": NUMEL,
    "bits": BITS,
    "bucket_size": BUCKET,
    "rows": ROWS,
    "columns": COLUMNS,
    "stride": 3 * BUCKET,
}
SCALARS |= {"lengths": [NUMEL - 9, 9], "covered": [7, 1], "salt": 0}
SCALARS |= {"offsets": [0], "keys": [5]}
SCALARS |= {"elements_per_bit": 2, "seed": 1, "alpha": 1.0, "beta": 1.0, "stochastic": True, "unbiased": True}
PAYLOAD_BYTES = {
    "rotated": cuda_ext.rotated_bytes(NUMEL, BITS, BUCKET),
    "sparse": cuda_ext.sparse_bytes(NUMEL, 2),
    "bfloat16": 2 * NUMEL,
    "minmax": cuda_ext.minmax_bytes(ROWS, COLUMNS, BITS),
}


def random_tensor(shape: list[int], dtype: torch.dtype, seed: int) -> Tensor:
    """Of random bytes."""
    count = torch.Size(shape).numel() * dtype.itemsize
    raw = torch.randint(256, (count,), generator=torch.Generator().manual_seed(seed), dtype=torch.uint8)
    return raw.view(dtype).view(shape)


def fitting(op: str, argument: Any) -> Any:
    """A value of an op's argument with which it works."""
    value = _fitting(op, argument.name)
    return [value] if str(argument.type) == "List[Tensor]" else value


def _fitting(op: str, name: str) -> Any:
    if name in SCALARS:
        return SCALARS[name]
    size = next((size for family, size in PAYLOAD_BYTES.items() if family in op), None)
    size = size or cuda_ext.payload_bytes(NUMEL, BITS, BUCKET)
    if name == "messages":
        return random_tensor([NUMEL], torch.uint8, 0)
    if name.startswith("payload"):
        return random_tensor([2, size] if name == "payloads" else [size], torch.uint8, 0)
    numel = NUMEL + 3 * BUCKET * ("parts" in op)  # of two
    if name == "bucket_ids":
        return torch.arange(-(-numel // BUCKET))
    return random_tensor([ROWS, COLUMNS] if "minmax" in op else [numel], torch.float32, 1)


EDGES = [-(2**63), -1, 71, 512, 2**31, 2**32, 2**32 + 1, 2**40, 2**56, 2**61, 2**62, 2**63 - 1]
SHAPES = st.lists(st.integers(0, 3) | st.sampled_from([NUMEL - 1, NUMEL, NUMEL + 1, 2**10]), max_size=2)
DTYPES = st.sampled_from([torch.uint8, torch.float32, torch.float64, torch.float16, torch.int64])
TENSORS = st.builds(random_tensor, SHAPES, DTYPES, st.integers(0, 99))
ANY: dict[str, st.SearchStrategy[Any]] = {
    "int": st.integers(0, 70) | st.sampled_from(EDGES),
    "float": st.floats(),
    "bool": st.booleans(),
    "List[int]": st.lists(st.integers(0, NUMEL) | st.sampled_from(EDGES), max_size=3),
    "Tensor": TENSORS | TENSORS.map(lambda x: x.repeat_interleave(2, -1)[..., ::2] if x.dim() else x),
    "Optional[Tensor]": st.none() | TENSORS,
    "List[Tensor]": st.lists(TENSORS, max_size=3),
}


@pytest.mark.parametrize("op", OPS)
def test_the_arguments_fit(op: str) -> None:
    """Else what follows would test one check only."""
    call = getattr(torch.ops.mqgrad, op)
    call(*(fitting(op, argument) for argument in call.default._schema.arguments))


@pytest.mark.parametrize("op", OPS)
@settings(max_examples=100)
@given(st.data())
def test_any_arguments(op: str, data: st.DataObject) -> None:
    call = getattr(torch.ops.mqgrad, op)
    schema = call.default._schema.arguments
    arguments = [fitting(op, argument) for argument in schema]
    wrong = data.draw(st.sets(st.integers(0, len(schema) - 1), min_size=1, max_size=2), label="wrong")
    for i in wrong:
        arguments[i] = data.draw(ANY[str(schema[i].type)], label=schema[i].name)
    refused = ""
    try:
        call(*arguments)
    except RuntimeError as error:
        refused = str(error)
    by_dispatcher = "no tensor arguments" in refused  # an empty list is of no device
    assert not refused or "mqgrad: " in refused or by_dispatcher
