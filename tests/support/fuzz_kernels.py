"""Build and run fuzz_kernels.cpp: ``make fuzz`` (clang with libFuzzer) and ``make sanitize`` (any compiler).

Instrumented loops do not become vector code. ``make sanitize`` therefore runs the kernels a second time as they are
shipped, with every clone this processor has, on arrays that end at a page that may not be touched.
"""

import argparse
import os
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import instruction_sets
from instruction_sets import FOLDER, KERNELS, Unavailable
from torch.utils.cpp_extension import include_paths

ROOT = Path(__file__).parents[2]
CASES, RANDOM = FOLDER / "fuzz_kernels.cpp", FOLDER / "random_inputs.cpp"
FLAGS = ["-std=c++17", "-O1", "-g", "-ffp-contract=off", "-fno-sanitize-recover=all"]
FLAGS += ["-DTORCH_TARGET_VERSION=0x020a000000000000", f"-I{KERNELS}"]
SANITIZERS = "address,undefined"


def build_sanitized(folder: Path) -> Path:
    """A program that feeds the kernels a number of random inputs, under AddressSanitizer and UBSan."""
    compiler = os.environ.get("CXX", "c++")
    return _build(compiler, [f"-fsanitize={SANITIZERS}"], [CASES, RANDOM], folder / "sanitized")


def build_guarded(folder: Path) -> dict[str, Path]:
    """Programs that feed the kernels random inputs between guard pages, one for each set of clones."""
    return instruction_sets.build([CASES, RANDOM], folder, ["-DMQGRAD_GUARD_PAGES"])


def build_fuzzer(folder: Path) -> Path:
    """The same kernels under libFuzzer, which is guided by coverage."""
    return _build("clang++", [f"-fsanitize=fuzzer,{SANITIZERS}"], [CASES], folder / "fuzzer")


def _build(compiler: str, flags: list[str], harness: list[Path], program: Path) -> Path:
    if shutil.which(compiler) is None:
        raise Unavailable(f"there is no {compiler}")
    _try_sanitizers(compiler, flags, RANDOM in harness, program.with_suffix(".probe"))
    command = [compiler, *FLAGS, *flags, *(f"-isystem{path}" for path in include_paths())]
    sources = [*sorted(KERNELS.glob("cpu_*.cpp")), *harness]
    objects = {source: program.with_name(f"{program.name}-{source.stem}.o") for source in sources}

    def compile_one(source: Path) -> None:
        arguments = [*command, "-c", str(source), "-o", str(objects[source])]
        subprocess.run(arguments, check=True, timeout=300)

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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["fuzz", "sanitize"])
    parser.add_argument("--seconds", type=int, default=60, help="of fuzzing")
    parser.add_argument("--inputs", type=int, default=20_000, help="random inputs to the sanitized kernels")
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "fuzz", help="programs and corpus")
    arguments = parser.parse_args()
    corpus = arguments.folder / "corpus"
    corpus.mkdir(parents=True, exist_ok=True)
    if arguments.what == "sanitize":
        programs = [build_sanitized(arguments.folder), *build_guarded(arguments.folder).values()]
        commands = [[str(program), str(arguments.inputs)] for program in programs]
    else:
        limits = [f"-max_total_time={arguments.seconds}", "-max_len=60000"]
        commands = [[str(build_fuzzer(arguments.folder)), *limits, str(corpus)]]
    for command in commands:
        subprocess.run(command, check=True, cwd=arguments.folder)


if __name__ == "__main__":
    main()
