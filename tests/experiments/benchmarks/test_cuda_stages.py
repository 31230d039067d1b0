"""The stages of the script for CUDA kernels: processes that end with it."""

import os
import signal
import subprocess
from pathlib import Path

import cuda_codec
import pytest


def test_an_interrupted_stage_leaves_no_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[subprocess.Popen[bytes]] = []

    class Interrupted(subprocess.Popen):  # type: ignore[type-arg]
        def wait(self, timeout: float | None = None) -> int:
            if timeout is not None:
                started.append(self)
                raise KeyboardInterrupt
            return super().wait()

    monkeypatch.setattr(subprocess, "Popen", Interrupted)
    stages = cuda_codec.Stages(tmp_path / "report.json", 60.0)
    with pytest.raises(KeyboardInterrupt):
        stages.run("long", ["sleep", "100"], dict(os.environ), folder=str(tmp_path))
    (process,) = started
    try:
        assert process.returncode == -signal.SIGKILL
    finally:
        process.kill()
