"""Which commit a figure or a policy is said to come from."""

import re
import runpy
import shutil
import subprocess
from pathlib import Path

import pytest

from mqgrad.trainers import versions

CHECKOUT = Path(__file__).parents[2]
SOURCE = CHECKOUT / "trainers" / "versions.py"


def git(folder: Path, *arguments: str) -> str:
    who = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    command = ["git", "-C", str(folder), *who, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def revision_by(file: Path) -> str | None:
    return runpy.run_path(str(file))["git_revision"]()


def copied_to(package: Path) -> Path:
    """The file where it lies in an installed package."""
    (package / "trainers").mkdir(parents=True)
    return Path(shutil.copy(SOURCE, package / "trainers" / "versions.py"))


def test_the_installed_package_knows_the_commit_that_it_was_built_from() -> None:
    try:
        git(CHECKOUT, "ls-files", "--error-unmatch", "setup.py")
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("not tested in a checkout, and so not built in one")
    package = Path(versions.__file__).parents[1]
    revision = versions.git_revision()
    assert re.fullmatch(r"[0-9a-f]{12}(\+changes)?", revision or "")
    if package != CHECKOUT:  # not an editable install
        assert revision == (package / "revision.txt").read_text().strip()


def test_in_a_checkout_git_is_asked(tmp_path: Path) -> None:
    file = copied_to(tmp_path)
    git(tmp_path, "init")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--message", "first")
    (tmp_path / "revision.txt").write_text("of an earlier build\n")
    commit = git(tmp_path, "rev-parse", "--short=12", "HEAD")
    assert revision_by(file) == commit
    file.write_text(file.read_text() + "\n")
    assert revision_by(file) == f"{commit}+changes"


def test_a_package_in_a_strangers_checkout_is_not_of_its_commit(tmp_path: Path) -> None:
    git(tmp_path, "init")
    git(tmp_path, "commit", "--allow-empty", "--message", "the stranger's")
    file = copied_to(tmp_path / "venv" / "mqgrad")
    assert revision_by(file) is None
    (tmp_path / "venv" / "mqgrad" / "revision.txt").write_text("0123456789ab+changes\n")
    assert revision_by(file) == "0123456789ab+changes"
