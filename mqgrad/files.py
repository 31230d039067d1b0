"""Files that are whole whenever they are looked at."""

import contextlib
import hashlib
import os
from collections.abc import Iterator
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
    with replacing(path, path.with_name(f"{path.name}.partial")) as partial:
        partial.write_text(text, encoding="utf-8")


def file_digest(path: Path) -> str:
    """The first 16 hexadecimal digits of a file's SHA-256."""
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


@contextlib.contextmanager
def replacing(path: str | os.PathLike[str], partial: Path) -> Iterator[Path]:
    """Write to ``partial``, in the same folder, and it takes the place of ``path`` as a whole; nothing is left of it
    where that fails."""
    try:
        yield partial
        os.replace(partial, path)
    except BaseException:  # as of a full disk, or Ctrl-C
        partial.unlink(missing_ok=True)
        raise
