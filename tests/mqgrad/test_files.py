"""Files that are written whole or not at all."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from mqgrad.files import replace_file


def test_a_file_is_replaced_and_nothing_lies_beside_it(tmp_path: Path) -> None:
    for text in ("one", "two"):
        replace_file(tmp_path / "file", text)
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("file", "two")]


def test_a_link_is_written_through(tmp_path: Path) -> None:
    file, link = tmp_path / "file", tmp_path / "link"
    link.symlink_to(file)
    for text in ("one", "two"):
        replace_file(link, text)
    assert (link.is_symlink(), file.read_text()) == (True, "two")


def test_what_is_no_regular_file_is_written_to() -> None:
    reader, writer = os.pipe()
    replace_file(Path(f"/dev/fd/{writer}"), "text")
    os.close(writer)
    with open(reader) as file:
        assert file.read() == "text"


def test_the_text_is_utf8_in_every_locale(tmp_path: Path) -> None:
    write = (
        "import pathlib, sys, mqgrad.files as files; files.replace_file(pathlib.Path(sys.argv[1]), '\\u2265')"
    )
    ascii_locale = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    subprocess.run([sys.executable, "-c", write, str(tmp_path / "file")], check=True, env=ascii_locale)
    assert (tmp_path / "file").read_text(encoding="utf-8") == "≥"


def test_a_write_that_fails_leaves_nothing_beside_the_file(tmp_path: Path) -> None:
    with pytest.raises(UnicodeEncodeError):
        replace_file(tmp_path / "file", "\ud800")
    assert list(tmp_path.iterdir()) == []
