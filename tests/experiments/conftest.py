"""The command line in this process."""

import sys
from collections.abc import Callable

import pytest

from mqgrad.experiments.cli import main


@pytest.fixture
def invoke(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str]]:
    """Run the command in this process, which has torch imported; return exit code, stdout and stderr."""

    monkeypatch.setattr(sys, "path", list(sys.path))  # the command adds the current folder

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setenv("COLUMNS", "200")
        monkeypatch.setattr(sys, "argv", ["mqgrad", *arguments])
        with pytest.raises(SystemExit) as stopped:
            main()
        return int(stopped.value.code or 0), *capsys.readouterr()

    return run
