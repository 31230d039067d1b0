"""Which commit a figure or a policy is said to come from."""

import re
import runpy
import shutil
import subprocess
import sys
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
    (package / "trainers" / "__init__.py").touch()
    return Path(shutil.copy(SOURCE, package / "trainers" / "versions.py"))


def test_the_installed_package_knows_the_commit_that_it_was_built_from() -> None:
    try:
        git(CHECKOUT, "ls-files", "--error-unmatch", "setup.py")
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("not tested in a checkout, and so not built in one")
    package = Path(versions.__file__).parents[1]
    revision = versions.git_revision()
    assert re.fullmatch(r"[0-9a-f]{12}(\+changes\.[0-9a-f]{8})?", revision or "")
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
    (tmp_path / "report.py").touch()  # belongs to no package
    (tmp_path / "trainers" / "results.jsonl").touch()
    assert revision_by(file) == commit


def test_different_changes_are_told_apart(tmp_path: Path) -> None:
    file, new = copied_to(tmp_path), tmp_path / "trainers" / "new.py"
    setup = tmp_path / "setup.py"
    setup.touch()
    git(tmp_path, "init")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--message", "first")
    named = [revision_by(file)]
    for changed, content in ((setup, b"a"), (setup, b"\xff"), (new, b"a"), (new, b"\xff")):
        changed.write_bytes(content)
        named.append(revision_by(file))
    new.with_name(".#new.py").symlink_to("somebody@host:1")  # as Emacs marks what is open
    named.append(revision_by(file))
    assert len(set(named)) == 6
    assert all(re.fullmatch(rf"{named[0]}\+changes\.[0-9a-f]{{8}}", revision) for revision in named[1:])


def test_an_installed_copy_says_if_it_runs_with_the_hook_of_a_checkout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = copied_to(tmp_path / "installed" / "mqgrad")
    (tmp_path / "installed" / "mqgrad" / "revision.txt").write_text("0123456789ab\n")
    for package, revision in (("installed", "0123456789ab"), ("checkout", "0123456789ab+checkout")):
        monkeypatch.setattr(
            sys.modules["mqgrad"], "__file__", str(tmp_path / package / "mqgrad" / "__init__.py")
        )
        assert revision_by(file) == revision


def test_a_package_in_a_strangers_checkout_is_not_of_its_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    git(tmp_path, "init")
    git(tmp_path, "commit", "--allow-empty", "--message", "the stranger's")
    package = tmp_path / "venv" / "mqgrad"
    file = copied_to(package)
    monkeypatch.setattr(sys.modules["mqgrad"], "__file__", str(package / "__init__.py"))
    assert revision_by(file) is None
    (package / "revision.txt").write_text("0123456789ab+changes.01234567\n")
    assert revision_by(file) == "0123456789ab+changes.01234567"
