"""Training through the hook on a GPU, which two ranks share."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

SCRIPT = Path(__file__).parents[2] / "support" / "hook_on_cuda.py"

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")


@pytest.mark.parametrize("what", ["same", "dies"])
def test_hook_on_a_gpu(what: str, tmp_path: Path) -> None:
    """Bit by bit what the CPU gives; and a rank that leaves is noticed."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [*torchrun, str(SCRIPT), what], cwd=tmp_path, capture_output=True, text=True, timeout=110, check=False
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
