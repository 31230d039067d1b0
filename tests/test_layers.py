"""Imports run downward, as the tables of docs/architecture.md have it."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = ("cuda_ext", "mqgrad", "trainers", "envs", "agents", "experiments")
"""The lowest first; each may import those before it."""
ROOMS = {
    "mqgrad": ("codecs", "collectives", "statistics", "compressors", "policies", "controllers", "hook"),
    "trainers": ("workloads", "methods", "clusters"),
    "experiments": ("netlab", "sweep", "reports", "compare", "bench"),
}
"""The same, within a folder. What its own files import is not looked at, nor what rooms import of them."""


def imported(path: Path) -> set[tuple[str, ...]]:
    """Modules of ours that a file imports, as parts of their paths from the top folder."""
    here = path.relative_to(ROOT).parent.parts
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.level:
            base = here[: len(here) - node.level + 1]
            found |= {(*base, *(node.module or alias.name).split(".")) for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "mqgrad":
            found |= {_folder((*(node.module or "").split(".")[1:], alias.name)) for alias in node.names}
        elif isinstance(node, ast.Import):
            ours = [alias.name.split(".")[1:] for alias in node.names if alias.name.startswith("mqgrad.")]
            found |= {_folder(tuple(parts)) for parts in ours}
    return found


def _folder(parts: tuple[str, ...]) -> tuple[str, ...]:
    return parts if parts[0] in FOLDERS else ("mqgrad", *parts)


def files_of(*folder: str) -> list[Path]:
    return sorted((ROOT / Path(*folder)).rglob("*.py"))


@pytest.mark.parametrize("folder", FOLDERS)
def test_folders_import_what_lies_below(folder: str) -> None:
    above = FOLDERS[FOLDERS.index(folder) + 1 :]
    entry = ROOT / "mqgrad" / "__main__.py"  # the command line, where the package has one
    wrong = {(path, module) for path in files_of(folder) for module in imported(path) if module[0] in above}
    assert not [(path, module) for path, module in wrong if path != entry]


@pytest.mark.parametrize(
    ("folder", "room"), [(folder, room) for folder, all_of in ROOMS.items() for room in all_of]
)
def test_rooms_import_what_lies_below(folder: str, room: str) -> None:
    rooms = ROOMS[folder]
    above = {(folder, other) for other in rooms[rooms.index(room) + 1 :]}
    files = files_of(folder, room)
    assert files
    assert not [(path, module) for path in files for module in imported(path) if module[:2] in above]


def test_the_deploy_side_imports_neither_what_learns_nor_a_compiler(tmp_path: Path) -> None:
    """Torch's takes two seconds, and who calls `torch.compile` imports it anyway."""
    heavy = (
        "torch._dynamo",
        "gymnasium",
        "stable_baselines3",
        "sklearn",
        "scipy",
        "matplotlib",
        "pandas",
        "typer",
    )
    code = f"import sys, mqgrad; print([name for name in {heavy} if name in sys.modules])"
    told = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=100, check=True, cwd=tmp_path
    )
    assert told.stdout.strip() == "[]"
