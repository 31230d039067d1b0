"""Short runs of `make sanitize` and `make fuzz`: bytes from anywhere make no kernel leave its buffers."""

import signal
import subprocess
from concurrent.futures import Future
from pathlib import Path

import fuzz_kernels
import pytest
from built import built
from instruction_sets import FOLDER, Unavailable

pytestmark = pytest.mark.timeout(300)  # to build them


def run(program: Path, *arguments: str) -> str:
    result = subprocess.run(
        [program, *arguments], capture_output=True, text=True, cwd=program.parent, timeout=60, check=False
    )
    assert result.returncode == 0, f"{program.name} ended with {result.returncode}: {result.stderr[-4000:]}"
    return result.stdout + result.stderr


@pytest.fixture(scope="module")
def corpus(fuzzer: Future[Path]) -> Path:
    """What ten seconds of coverage-guided fuzzing led to."""
    return fuzz_kernels.fuzz(built(fuzzer), 10, "-seed=1")


def assert_run_with_every_clone(programs: dict[str, Path], inputs: str, count: int) -> None:
    printed = {told: run(program, inputs) for told, program in programs.items()}
    assert printed["baseline"] == f"{count} inputs, baseline\n"
    assert printed["AVX2"] in (f"{count} inputs, AVX2\n", printed["baseline"])
    assert printed["best"] in (f"{count} inputs, AVX-512\n", printed["AVX2"])


def test_random_inputs_between_guard_pages_with_every_clone(guarded: Future[dict[str, Path]]) -> None:
    assert_run_with_every_clone(built(guarded), "3000", 3000)


def test_ten_seconds_of_coverage_guided_fuzzing(corpus: Path) -> None:
    assert len(list(corpus.iterdir())) > 12, "fewer inputs than fuzz_kernels.cpp has cases"


def test_random_inputs_under_the_sanitizers(sanitized: Future[Path]) -> None:
    assert run(built(sanitized), "3000").startswith("3000 inputs, ")


def test_what_coverage_led_to_between_guard_pages_with_every_clone(
    corpus: Path, guarded: Future[dict[str, Path]]
) -> None:
    assert_run_with_every_clone(built(guarded), str(corpus), len(list(corpus.iterdir())))


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Programs of one kernel, which overruns its buffer in vector code only."""
    folder = tmp_path_factory.mktemp("planted")
    try:
        return fuzz_kernels.build_guarded(folder, FOLDER / "planted_overrun.cpp", kernels=[])
    except Unavailable as reason:
        pytest.skip(str(reason))


def test_an_input_that_overruns_a_buffer_in_vector_code_only_is_found_in_a_corpus(
    planted: dict[str, Path], tmp_path: Path
) -> None:
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    (corpus / "harmless").write_bytes(b"abc")
    (corpus / "harmful").write_bytes(b"xyz")
    assert run(planted["baseline"], str(corpus)) == "2 inputs, baseline\n"
    if "baseline" in run(planted["best"], str(corpus / "harmless")):
        pytest.skip("this processor has no AVX2")
    ended = subprocess.run([planted["best"], corpus], capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == -signal.SIGSEGV
    assert ended.stderr == f"input: {corpus / 'harmful'}\n"


def test_a_corpus_that_is_not_there_is_not_taken_for_an_empty_one(
    planted: dict[str, Path], tmp_path: Path
) -> None:
    ended = subprocess.run([planted["best"], tmp_path / "corpus"], timeout=60, check=False)
    assert ended.returncode == 2
