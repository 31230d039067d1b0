"""Files that are written whole or not at all."""

import os
from pathlib import Path

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
