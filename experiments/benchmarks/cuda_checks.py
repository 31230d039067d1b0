"""Compare the CUDA kernels with the CPU's, byte for byte; a stage of cuda_codec.py.

A group of checks ends at its first difference or error; the others go on. ``--device cpu`` compares the CPU with
itself, to try this script where there is no GPU.
"""

import itertools
from collections.abc import Callable, Iterator

import cuda_report
import script
import torch
from cuda_execution import check_graphs, check_no_waiting
from cuda_inputs import DTYPES, SIZES, AnyRotationCodec, Sizes, gradient, same, shifted
from torch import Tensor

from mqgrad import cuda_ext
from mqgrad.codecs.bfloat16 import Bfloat16Codec
from mqgrad.codecs.sparse import SparseCodec
from mqgrad.codecs.uniform import UniformCodec
from mqgrad.codecs.vector_codec import Feedback, VectorCodec

SEED = 7


class NotDone(Exception):
    """This card cannot run a check, which says nothing about the kernels."""


def check_code(
    codec: VectorCodec,
    numel: int,
    device: str,
    dtype: torch.dtype = torch.float32,
    coefficients: tuple[float, float] = (1.0, 1.0),
    *,
    finite: bool = False,
) -> None:
    """All that a codec does with a gradient; ``coefficients`` are those of its feedback."""
    values = gradient(numel + 1).to(dtype)
    if finite:
        values = values.nan_to_num()
    ours = results(codec, values.to(device)[1:], coefficients)  # not aligned for vector loads
    expected = results(codec, values[1:], coefficients)
    # In turn: the next step may overwrite what this one gave.
    for (step, result), (_, right) in zip(ours, expected, strict=True):
        same(f"{step}, numel={numel}, {dtype}, finite={finite}, {codec}", result, right)


def results(codec: VectorCodec, x: Tensor, coefficients: tuple[float, float]) -> Iterator[tuple[str, Tensor]]:
    """What each step gives, with its name. Later steps overwrite the residual."""
    numel, residual = x.numel(), torch.full((x.numel(),), 0.01, device=x.device)
    yield "payload", codec.encode(x, SEED)
    yield "aligned", codec.encode(x.clone(), SEED)
    payload = codec.encode(x, SEED, feedback=Feedback(residual, *coefficients))
    yield "payload with feedback", payload
    yield "residual", residual
    yield "decoded", codec.decode(payload, numel)
    codec.decode_add_(residual, shifted(payload))
    yield "sum", residual
    other = codec.encode(x.flip(0), SEED + 1)
    yield "other payload", other
    payloads = torch.stack([payload, other])
    yield "reduced", codec.encode_mean(payloads, numel, SEED, feedback=Feedback(residual))
    yield "residual of the reduced", residual
    codec.decode_mean_into_(residual, payloads)
    yield "mean", residual


def check_uniform(sizes: Sizes, device: str) -> None:
    dtypes = itertools.cycle(DTYPES)
    for (numel, bucket_size), bits, stochastic in itertools.product(
        sizes.shapes, sizes.widths, (False, True)
    ):
        codec = UniformCodec(bits=bits, bucket_size=bucket_size, stochastic=stochastic)
        check_code(codec, numel, device, next(dtypes))


def check_rotated(sizes: Sizes, device: str) -> None:
    for (numel, bucket_size), bits, unbiased in itertools.product(
        sizes.rotated_shapes, range(1, 5), (False, True)
    ):
        codec = AnyRotationCodec(bits=bits, bucket_size=bucket_size, unbiased=unbiased)
        check_code(codec, numel, device, coefficients=(0.7, 0.9))


def check_sparse(sizes: Sizes, device: str) -> None:
    """Also of finite gradients: a NaN makes all of a sparse code NaN."""
    for (numel, _), bits, finite in itertools.product(sizes.shapes, (1 / 2, 1 / 8, 1 / 64), (False, True)):
        check_code(SparseCodec(bits=bits), numel, device, finite=finite)


def check_bfloat16(sizes: Sizes, device: str) -> None:
    for (numel, _), dtype in itertools.product(sizes.shapes, DTYPES):
        check_code(Bfloat16Codec(), numel, device, dtype)


def check_minmax(sizes: Sizes, device: str) -> None:
    shapes = [(1, 1), (40, 3), (3, 40), (70, 33), (2, 1200)] + [(1000, 999)] * sizes.many_elements
    for (rows, columns), bits, dtype in itertools.product(shapes, sizes.widths, DTYPES):
        name = f"{rows} x {columns}, bits={bits}, {dtype}"
        x = gradient(rows * columns).to(dtype).view(rows, columns)
        expected = cuda_ext.encode_minmax(x, bits)
        payload = cuda_ext.encode_minmax(x.to(device), bits)
        same(f"payload, {name}", payload, expected)
        decoded = cuda_ext.decode_minmax(payload, rows, columns, bits)
        same(f"decoded, {name}", decoded, cuda_ext.decode_minmax(expected, rows, columns, bits))


def check_slices(sizes: Sizes, device: str) -> None:
    """Results written to slices of other tensors, at any address."""
    x = gradient(1000)
    for bits, shift in itertools.product(sizes.widths, (0, 1, 4)):
        expected = cuda_ext.encode(x, bits, 512, True, 5)
        memory = torch.zeros(len(expected) + shift, dtype=torch.uint8, device=device)
        cuda_ext.encode(x.to(device), bits, 512, True, 5, out=memory[shift:])
        same(f"payload, bits={bits}, shift={shift}", memory[shift:], expected)
        values = torch.zeros(1000 + shift, device=device)
        cuda_ext.decode_into(values[shift:], memory[shift:], bits, 512)
        same(
            f"decoded, bits={bits}, shift={shift}", values[shift:], cuda_ext.decode(expected, 1000, bits, 512)
        )


def check_figures(sizes: Sizes, device: str) -> None:
    """Those of the CPU but for rounding, and the same in every call."""
    for (numel, bucket_size), dtype in itertools.product(sizes.shapes, DTYPES):
        name = f"numel={numel}, bucket_size={bucket_size}, {dtype}"
        x = gradient(numel).nan_to_num().to(dtype)
        expected = cuda_ext.gradient_figures([x, x], [3, 4], bucket_size, seed=5)
        on_device = x.to(device)
        ours = cuda_ext.gradient_figures([on_device, on_device], [3, 4], bucket_size, seed=5)
        again = cuda_ext.gradient_figures([on_device, on_device], [3, 4], bucket_size, seed=5)
        same(f"again, {name}", ours, again.cpu())
        size = float(expected[0, 0]) ** 0.5
        torch.testing.assert_close(ours.cpu(), expected, rtol=1e-4, atol=1e-4 * size)


def check_many_elements(sizes: Sizes, device: str) -> None:
    """The last bucket of 2^31 + 1000 elements, against the same elements alone; 2^31 is a multiple of its size."""
    numel = 2**31 + 1000
    if torch.cuda.mem_get_info()[0] < 20 * 2**30:
        raise NotDone("needs 20 GiB of free GPU memory")
    x = torch.zeros(numel, dtype=torch.bfloat16, device=device)
    values = gradient(1000).to(torch.bfloat16)
    x[-1000:] = values.to(device)
    for bits in (3, 4):
        payload = cuda_ext.encode(x, bits, 512, False, 1)
        decoded = cuda_ext.decode(payload, numel, bits, 512)[-1000:].clone()
        alone = cuda_ext.encode(values, bits, 512, False, 1)
        same(f"bits={bits}", decoded, cuda_ext.decode(alone, 1000, bits, 512))
    payload = cuda_ext.encode_bfloat16(x)
    same("bfloat16", cuda_ext.decode_bfloat16(payload, numel)[-1000:], values.float())


def groups(sizes: Sizes, device: str) -> dict[str, Callable[[Sizes, str], None]]:
    chosen: dict[str, Callable[[Sizes, str], None]] = {
        "uniform": check_uniform,
        "rotated": check_rotated,
        "sparse": check_sparse,
        "bfloat16": check_bfloat16,
        "minmax": check_minmax,
        "slices": check_slices,
        "figures": check_figures,
    }
    if sizes.many_elements and device == "cuda":
        chosen["many elements"] = check_many_elements
    if sizes.beyond_bytes and device == "cuda":  # last: a capture that fails may break what follows
        chosen |= {"no waiting": check_no_waiting, "graphs": check_graphs}
    return chosen


def main() -> None:
    parser = script.parser(__doc__)
    parser.add_argument(
        "--output", type=script.output_file, help="of cuda_report.py; printed alone if it is left out"
    )
    parser.add_argument("--sizes", choices=list(SIZES), default="small")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    arguments = parser.parse_args()
    sizes = SIZES[arguments.sizes]
    outcomes: dict[str, str] = {}
    for name, check in groups(sizes, arguments.device).items():
        try:
            check(sizes, arguments.device)
            outcomes[name] = "same"
        except NotDone as reason:
            outcomes[name] = f"not done: {reason}"
        except Exception as error:  # a broken kernel must not hide what the others do
            outcomes[name] = f"{type(error).__name__}: {error}"
        print(f"{arguments.sizes} {name}: {outcomes[name]}", flush=True)
        if arguments.output is not None:
            checks = cuda_report.read(arguments.output).get("checks", {})
            cuda_report.update(arguments.output, checks={**checks, arguments.sizes: outcomes})
    passed = all(outcome == "same" or outcome.startswith("not done") for outcome in outcomes.values())
    raise SystemExit(int(not passed))


if __name__ == "__main__":
    main()
