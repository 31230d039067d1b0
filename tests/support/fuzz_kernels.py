"""Build and run fuzz_kernels.cpp: ``make fuzz`` (clang with libFuzzer) and ``make sanitize`` (any compiler).

Instrumented loops do not become vector code, and clang compiles no clones. Both therefore run the kernels a second
time as they are shipped, with every clone this processor has, on arrays that end at a page that may not be touched:
``make sanitize`` on random inputs again, ``make fuzz`` on the corpus that coverage led it to.
"""

import argparse
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import instruction_sets
from instruction_sets import FOLDER, KERNELS, SOURCES, Unavailable
from torch.utils.cpp_extension import include_paths

ROOT = Path(__file__).parents[2]
CASES, INPUTS = FOLDER / "fuzz_kernels.cpp", FOLDER / "run_inputs.cpp"
FLAGS = ["-std=c++17", "-O1", "-g1", "-ffp-contract=off", "-fno-sanitize-recover=all"]
FLAGS += ["-DTORCH_TARGET_VERSION=0x020a000000000000", f"-I{KERNELS}"]
SANITIZERS = "address,undefined"


def build_sanitized(folder: Path) -> Path:
    """A program that feeds the kernels inputs, random ones or those of files, under AddressSanitizer and UBSan."""
    compiler = os.environ.get("CXX", "c++")
    return _build(compiler, [f"-fsanitize={SANITIZERS}"], [CASES, INPUTS], folder / "sanitized")


def build_guarded(
    folder: Path, cases: Path = CASES, kernels: Sequence[Path] | None = None
) -> dict[str, Path]:
    """Programs that do so between guard pages instead, one for each set of clones; ``kernels`` are objects, compiled
    here if they are not given."""
    return instruction_sets.build([cases, INPUTS], folder, ["-DMQGRAD_GUARD_PAGES"], kernels)


def build_fuzzer(folder: Path) -> Path:
    """The same kernels under libFuzzer, which is guided by coverage."""
    return _build("clang++", [f"-fsanitize=fuzzer,{SANITIZERS}"], [CASES], folder / "fuzzer")


def _build(compiler: str, flags: list[str], harness: list[Path], program: Path) -> Path:
    if shutil.which(compiler) is None:
        raise Unavailable(f"there is no {compiler}")
    _try_sanitizers(compiler, flags, INPUTS in harness, program.with_suffix(".probe"))
    command = [compiler, *FLAGS, *flags, *(f"-isystem{path}" for path in include_paths())]
    sources = [*SOURCES, *harness]
    objects = {source: program.with_name(f"{program.name}-{source.stem}.o") for source in sources}

    def compile_one(source: Path) -> None:
        arguments = [*command, "-c", str(source), "-o", str(objects[source])]
        subprocess.run(arguments, check=True, timeout=600)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(compile_one, sources))
    subprocess.run(
        [compiler, *flags, *map(str, objects.values()), "-o", str(program)], check=True, timeout=60
    )
    return program


def _try_sanitizers(compiler: str, flags: list[str], with_main: bool, program: Path) -> None:
    """A compiler without their libraries fails when it links."""
    code = 'extern "C" int LLVMFuzzerTestOneInput(const char*, unsigned long) { return 0; }\n'
    code += "int main() {}\n" if with_main else ""
    command = [compiler, *flags, "-x", "c++", "-", "-o", str(program)]
    result = subprocess.run(command, input=code, text=True, capture_output=True, timeout=60, check=False)
    if result.returncode != 0:
        raise Unavailable(f"{compiler} {flags[0]} does not link: {result.stderr.strip().splitlines()[-1]}")


def fuzz(fuzzer: Path, seconds: int, *options: str) -> Path:
    """Fuzz from the corpus beside the program on, and return where it is; a new one if there is none.

    Args:
        fuzzer: what :func:`build_fuzzer` returned.
        options: further ones of libFuzzer.
    """
    corpus = fuzzer.parent / "corpus"
    corpus.mkdir(exist_ok=True)
    # The most memory that the parent ever had counts as the child's, of which libFuzzer allows 2 GB.
    bounds = (f"-max_total_time={seconds}", "-max_len=60000", "-rss_limit_mb=0")
    _run(fuzzer, *bounds, *options, str(corpus))
    return corpus


def _run(program: Path, *arguments: str) -> None:
    subprocess.run([program, *arguments], check=True, cwd=program.parent)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["fuzz", "sanitize"])
    parser.add_argument("--seconds", type=int, default=60, help="of fuzzing")
    parser.add_argument("--inputs", type=int, default=20_000, help="random inputs to the sanitized kernels")
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "fuzz", help="programs and corpus")
    arguments = parser.parse_args()
    folder = arguments.folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    try:
        if arguments.what == "fuzz":
            inputs = str(fuzz(build_fuzzer(folder), arguments.seconds))
        else:
            inputs = str(arguments.inputs)
            _run(build_sanitized(folder), inputs)
        for program in build_guarded(folder).values():
            _run(program, inputs)
    except Unavailable as reason:
        sys.exit(f"cannot run all of make {arguments.what} here: {reason}")


if __name__ == "__main__":
    main()
