"""Tests that need what may not be built: MQGRAD_REQUIRE_… in the environment turns a skip into a failure."""

import os
from concurrent.futures import Future
from typing import TypeVar

import pytest
import torch
from instruction_sets import Unavailable

from mqgrad import cuda_ext
from mqgrad.cuda_ext import library

HAS_KERNELS = torch.cuda.is_available() and "cuda" in library.COMPILED_DEVICES

needs_extension = pytest.mark.skipif(
    cuda_ext.IMPLEMENTATION == "reference" and "MQGRAD_REQUIRE_EXTENSION" not in os.environ,
    reason="the extension was not built",
)
needs_cuda = pytest.mark.skipif(
    not HAS_KERNELS and "MQGRAD_REQUIRE_CUDA" not in os.environ,
    reason="there is no GPU, or the extension was built without CUDA",
)

Result = TypeVar("Result")


def built(build: Future[Result]) -> Result:
    """What was built; where this machine cannot, the test is skipped."""
    try:
        return build.result()
    except Unavailable as reason:
        pytest.skip(str(reason))
