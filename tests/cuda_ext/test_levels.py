"""Every level of every width, exhaustively: the kernels compute it without a division."""

import struct

import numpy as np
import pytest
import torch

from mqgrad import cuda_ext


@pytest.mark.parametrize("bits", range(2, 9))
@pytest.mark.parametrize("scale", [1.0, 0.1, 3e38, 1e-38, 1e-44])
def test_a_level_is_the_rounded_quotient_times_the_scale(bits: int, scale: float) -> None:
    codes = 8 * 2**bits  # every code eight times over: long enough for the vectorised loops
    stream = sum((i % 2**bits) << (i * bits) for i in range(codes))
    packed = struct.pack("<f", scale) + stream.to_bytes(codes * bits // 8, "little")
    decoded = cuda_ext.decode(torch.frombuffer(bytearray(packed), dtype=torch.uint8), codes, bits, codes)
    s = 2 ** (bits - 1) - 1
    q = np.minimum(np.arange(codes) % 2**bits, 2 * s) - s
    expected = q.astype(np.float32) / np.float32(s) * np.float32(scale)
    assert decoded.numpy().tobytes() == expected.tobytes()
