"""Build, check and time the CUDA kernels on the GPU at hand, in one call that ends within a time limit:

    python experiments/benchmarks/cuda_codec.py --output cuda-codec.json

It needs a CUDA build of torch and its nvcc, numpy, setuptools, pip, and ninja for speed. The package is built for
this card, into a temporary folder. Each stage is a process of its own, and what it found is in the file before the
next begins:

1. Build.
2. Compare payloads, residuals and decoded values with those of the CPU kernels on small shapes; see cuda_checks.py.
3. Time the ops on 256 M elements; see cuda_timings.py.
4. Compare on large shapes, one of more than 2^31 elements.
5. Compare on a few small shapes under compute-sanitizer (memcheck, racecheck, synccheck), where that is installed,
   in what is left of the time.

The exit status is not zero if bytes differ, a sanitizer finds something, or a stage of the first three does not end.
"""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import IO

import cuda_report
import script
import torch

FOLDER = Path(__file__).resolve().parent
ROOT = FOLDER.parents[1]
SANITIZER_TOOLS = ("memcheck", "racecheck", "synccheck")
WORTH_STARTING = 10  # seconds
HAS_CUDA = (
    "from mqgrad.cuda_ext.library import COMPILED_DEVICES as devices; assert 'cuda' in devices, devices"
)


class Stages:
    """Runs one process after another until a deadline, and notes in the report what came of each.

    Args:
        output: file of the report.
        seconds: that all stages may take together, from now.
    """

    def __init__(self, output: Path, seconds: float) -> None:
        self._output = output
        self._deadline = time.monotonic() + seconds

    @property
    def seconds_left(self) -> float:
        return self._deadline - time.monotonic()

    def run(
        self,
        name: str,
        command: list[str],
        environment: dict[str, str],
        *,
        folder: str,
        at_most: float = float("inf"),
        log: IO[str] | None = None,
    ) -> bool:
        """Run a command in a folder, for at most so many seconds; whether it succeeded."""
        start, limit = time.monotonic(), min(at_most, self.seconds_left)
        if limit < WORTH_STARTING:
            return self._note(name, "no time left", 0.0)
        process = subprocess.Popen(
            command, env=environment, cwd=folder, stdout=log, stderr=log, start_new_session=True
        )
        try:
            code = process.wait(limit)
            outcome = "ok" if code == 0 else f"exit status {code}"
        except subprocess.TimeoutExpired:
            outcome = f"not finished in {limit:.0f} s"
        finally:
            if process.poll() is None:  # also after Ctrl-C, which a session of its own does not get
                os.killpg(process.pid, signal.SIGKILL)  # with what it has started
                process.wait()
        return self._note(name, outcome, time.monotonic() - start)

    def _note(self, name: str, outcome: str, seconds: float) -> bool:
        stages = cuda_report.read(self._output).get("stages", {})
        stages[name] = {"outcome": outcome, "seconds": round(seconds, 1)}
        cuda_report.update(self._output, stages=stages)
        print(f"{name}: {outcome} ({seconds:.0f} s)", flush=True)
        return outcome == "ok"


def build(stages: Stages, folder: str) -> dict[str, str] | None:
    """Install the package into a folder; the environment in which it is imported from there, None if that failed."""
    for stale in ROOT.glob("build/lib*"):
        shutil.rmtree(stale)  # setuptools would install what is no longer among the sources
    capability = ".".join(map(str, torch.cuda.get_device_capability()))
    site, log = Path(folder, "site"), Path(folder, "build.log")
    options = ["--verbose", "--no-deps", "--no-build-isolation", "--target", str(site)]
    environment = {**os.environ, "TORCH_CUDA_ARCH_LIST": capability}
    command = [sys.executable, "-m", "pip", "install", *options, str(ROOT)]
    with log.open("w") as file:
        built = stages.run("build", command, environment, folder=folder, log=file)
    path = os.pathsep.join(filter(None, [str(site), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "PYTHONPATH": path}
    if built and stages.run("import", [sys.executable, "-c", HAS_CUDA], environment, folder=folder):
        return environment
    print(log.read_text()[-8000:])
    return None


def sanitize(stages: Stages, script: list[str], environment: dict[str, str], folder: str) -> None:
    """Run the checks on tiny shapes under each tool, which share the time that is left."""
    sanitizer = shutil.which("compute-sanitizer")
    if sanitizer is None:
        print("compute-sanitizer is not installed")
        return
    uncached = {
        **environment,
        "PYTORCH_NO_CUDA_MEMORY_CACHING": "1",
    }  # a pool hides what lies outside a tensor
    for i, tool in enumerate(SANITIZER_TOOLS):
        command = [sanitizer, "--tool", tool, "--error-exitcode", "9", *script, "--sizes", "tiny"]
        share = stages.seconds_left / (len(SANITIZER_TOOLS) - i)
        stages.run(tool, command, uncached, folder=folder, at_most=share)


def run_stages(output: Path, seconds: float, device: str) -> None:
    stages = Stages(output, seconds)
    checks = [sys.executable, str(FOLDER / "cuda_checks.py"), "--device", device]
    timings = [sys.executable, str(FOLDER / "cuda_timings.py"), "--device", device]
    report = ["--output", str(output)]
    with tempfile.TemporaryDirectory() as folder:
        environment = build(stages, folder) if device == "cuda" else dict(os.environ)
        if environment is None:
            return
        stages.run("small", [*checks, *report, "--sizes", "small"], environment, folder=folder)
        stages.run("timings", [*timings, *report], environment, folder=folder)
        if device == "cuda":
            stages.run("large", [*checks, *report, "--sizes", "large"], environment, folder=folder)
            sanitize(stages, checks, environment, folder)


def succeeded(stages: dict[str, dict[str, str]], required: tuple[str, ...]) -> bool:
    failed = any(stage["outcome"].startswith("exit status") for stage in stages.values())
    return not failed and all(stages.get(name, {}).get("outcome") == "ok" for name in required)


def main() -> None:
    parser = script.parser(__doc__)
    parser.add_argument("--output", type=script.output_file, default="cuda-codec.json")
    parser.add_argument(
        "--time-limit", type=float, default=540, metavar="SECONDS", help="of all stages together"
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="on the CPU with the installed package: tries this script"
    )
    arguments = parser.parse_args()
    device = "cpu" if arguments.dry_run else "cuda"
    if device == "cuda" and not torch.cuda.is_available():
        raise SystemExit(
            "cuda_codec: no GPU here (torch.cuda.is_available() is false); nothing was checked or timed"
        )
    output = arguments.output.absolute()
    output.unlink(missing_ok=True)
    run_stages(output, arguments.time_limit, device)
    report = cuda_report.read(output)
    cuda_report.print_report(report)
    required = ("build", "import", "small", "timings") if device == "cuda" else ("small", "timings")
    if not succeeded(report.get("stages", {}), required):
        raise SystemExit("cuda_codec: failed; see above what")


if __name__ == "__main__":
    main()
