"""Files that are whole whenever they are looked at."""

import os
from pathlib import Path


def replace_file(path: Path, text: str) -> None:
    """Write a file in UTF-8, whole or not at all, whatever ends this process meanwhile; one writer at a time.

    What is there and no regular file, as /dev/stdout, is written to in its place.

    Raises:
        OSError: it cannot be written.
    """
    if path.exists() and not path.is_file():
        path.write_text(text, encoding="utf-8")
        return
    path = path.resolve()  # a link stays one
    partial = path.with_name(f"{path.name}.partial")
    try:
        partial.write_text(text, encoding="utf-8")
        os.replace(partial, path)
    except BaseException:  # as of a full disk, or Ctrl-C
        partial.unlink(missing_ok=True)
        raise
