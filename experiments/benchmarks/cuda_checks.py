"""Compare the CUDA kernels with the CPU's, byte for byte; a stage of cuda_codec.py.

A group of checks ends at its first difference or error; the others go on. ``--device cpu`` compares the CPU with
itself, to try this script where there is no GPU.
"""

import itertools
from collections.abc import Callable

import cuda_report
import script
import torch
from cuda_execution import check_graphs, check_no_waiting
from cuda_inputs import DTYPES, SIZES, Sizes, gradient, same, shifted, unaligned

from mqgrad import cuda_ext


class NotDone(Exception):
    """This card cannot run a check, which says nothing about the kernels."""


def check_uniform(sizes: Sizes, device: str) -> None:
    dtypes = itertools.cycle(DTYPES)
    for (numel, bucket_size), bits, stochastic in itertools.product(
        sizes.shapes, sizes.widths, (False, True)
    ):
        name = f"numel={numel}, bucket_size={bucket_size}, bits={bits}, stochastic={stochastic}"
        x, on_device = unaligned(numel, device, next(dtypes))
        residual = torch.full((numel,), 0.01)
        its_residual = residual.to(device, copy=True)
        settings = (bits, bucket_size, stochastic, 7)
        expected = cuda_ext.encode(x, *settings, residual=residual)
        payload = cuda_ext.encode(on_device, *settings, residual=its_residual)
        same(f"payload, {name}", payload, expected)
        same(f"residual, {name}", its_residual, residual)
        aligned = cuda_ext.encode(x.to(device), *settings)
        same(f"aligned, {name}", aligned, cuda_ext.encode(x, *settings))
        cuda_ext.decode_add_(its_residual, shifted(payload), bits, bucket_size)
        cuda_ext.decode_add_(residual, expected, bits, bucket_size)
        same(f"sum, {name}", its_residual, residual)
        payloads = torch.stack([expected, cuda_ext.encode(x, bits, bucket_size, False, 7)])
        reduced = cuda_ext.reduce_encode(payloads.to(device), numel, *settings, residual=its_residual)
        same(
            f"reduced, {name}", reduced, cuda_ext.reduce_encode(payloads, numel, *settings, residual=residual)
        )
        same(f"residual of the reduced, {name}", its_residual, residual)
        cuda_ext.decode_mean_into(its_residual, payloads.to(device), bits, bucket_size)
        cuda_ext.decode_mean_into(residual, payloads, bits, bucket_size)
        same(f"mean, {name}", its_residual, residual)
        decoded = cuda_ext.decode(payload, numel, bits, bucket_size)
        same(f"decoded, {name}", decoded, cuda_ext.decode(expected, numel, bits, bucket_size))


def check_rotated(sizes: Sizes, device: str) -> None:
    for (numel, bucket_size), bits, unbiased in itertools.product(
        sizes.rotated_shapes, range(1, 5), (False, True)
    ):
        name = f"numel={numel}, bucket_size={bucket_size}, bits={bits}, unbiased={unbiased}"
        x, on_device = unaligned(numel, device)
        residual = torch.full((numel,), 0.01)
        its_residual = residual.to(device, copy=True)
        settings = (bits, bucket_size, unbiased, 7)
        plain = cuda_ext.encode_rotated(x, *settings)
        same(f"payload, {name}", cuda_ext.encode_rotated(on_device, *settings), plain)
        expected = cuda_ext.encode_rotated(x, *settings, residual=residual, alpha=0.7, beta=0.9)
        payload = cuda_ext.encode_rotated(on_device, *settings, residual=its_residual, alpha=0.7, beta=0.9)
        same(f"payload with feedback, {name}", payload, expected)
        same(f"residual, {name}", its_residual, residual)
        cuda_ext.decode_rotated_add_(its_residual, shifted(payload), bits, bucket_size)
        cuda_ext.decode_rotated_add_(residual, expected, bits, bucket_size)
        same(f"sum, {name}", its_residual, residual)
        payloads = torch.stack([expected, plain])
        reduced = cuda_ext.reduce_encode_rotated(payloads.to(device), numel, *settings, residual=its_residual)
        expected = cuda_ext.reduce_encode_rotated(payloads, numel, *settings, residual=residual)
        same(f"reduced, {name}", reduced, expected)
        same(f"residual of the reduced, {name}", its_residual, residual)
        cuda_ext.decode_rotated_mean_into(its_residual, payloads.to(device), bits, bucket_size)
        cuda_ext.decode_rotated_mean_into(residual, payloads, bits, bucket_size)
        same(f"mean, {name}", its_residual, residual)


def check_sparse(sizes: Sizes, device: str) -> None:
    for (numel, _), elements_per_bit, finite in itertools.product(sizes.shapes, (2, 8, 64), (False, True)):
        name = f"numel={numel}, elements_per_bit={elements_per_bit}, finite={finite}"
        x, on_device = unaligned(numel, device)
        if finite:
            x, on_device = x.nan_to_num(), on_device.nan_to_num()
        residual = torch.full((numel,), 0.01)
        its_residual = residual.to(device, copy=True)
        expected = cuda_ext.sparse_encode(x, elements_per_bit, residual=residual)
        payload = cuda_ext.sparse_encode(on_device, elements_per_bit, residual=its_residual)
        same(f"payload, {name}", payload, expected)
        same(f"residual, {name}", its_residual, residual)
        cuda_ext.sparse_decode_add_(its_residual, shifted(payload), elements_per_bit)
        cuda_ext.sparse_decode_add_(residual, expected, elements_per_bit)
        same(f"sum, {name}", its_residual, residual)
        decoded = cuda_ext.sparse_decode(payload, numel, elements_per_bit)
        same(f"decoded, {name}", decoded, cuda_ext.sparse_decode(expected, numel, elements_per_bit))


def check_bfloat16(sizes: Sizes, device: str) -> None:
    for (numel, _), dtype in itertools.product(sizes.shapes, DTYPES):
        name = f"numel={numel}, {dtype}"
        x, on_device = unaligned(numel, device, dtype)
        plain = cuda_ext.encode_bfloat16(x)
        same(f"payload, {name}", cuda_ext.encode_bfloat16(on_device), plain)
        same(f"aligned, {name}", cuda_ext.encode_bfloat16(x.to(device)), plain)
        residual = torch.full((numel,), 0.01)
        its_residual = residual.to(device, copy=True)
        expected = cuda_ext.encode_bfloat16(x, residual=residual)
        payload = cuda_ext.encode_bfloat16(on_device, residual=its_residual)
        same(f"payload with feedback, {name}", payload, expected)
        same(f"residual, {name}", its_residual, residual)
        cuda_ext.decode_bfloat16_add_(its_residual, shifted(payload))
        cuda_ext.decode_bfloat16_add_(residual, expected)
        same(f"sum, {name}", its_residual, residual)
        payloads = torch.stack([expected, cuda_ext.encode_bfloat16(-x)])
        reduced = cuda_ext.reduce_encode_bfloat16(payloads.to(device), numel, residual=its_residual)
        expected = cuda_ext.reduce_encode_bfloat16(payloads, numel, residual=residual)
        same(f"reduced, {name}", reduced, expected)
        same(f"residual of the reduced, {name}", its_residual, residual)
        cuda_ext.decode_bfloat16_mean_into(its_residual, payloads.to(device))
        cuda_ext.decode_bfloat16_mean_into(residual, payloads)
        same(f"mean, {name}", its_residual, residual)
        decoded = cuda_ext.decode_bfloat16(payload, numel)
        same(f"decoded, {name}", decoded, cuda_ext.decode_bfloat16(payload.cpu(), numel))


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
