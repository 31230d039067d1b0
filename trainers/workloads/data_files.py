"""Public data sets that people have downloaded."""

import os
from collections.abc import Sequence
from pathlib import Path


def find_folder(workload: str, data_root: str, folder: str, files: Sequence[str], source: str) -> Path:
    """Return the folder that holds all files: ``data_root`` or its subfolder ``folder``.

    Args:
        workload: name to show in errors.
        data_root: what the person set.
        folder: what the public archive unpacks to.
        files: what must be there.
        source: the archive and where it is offered, to show in errors.

    Raises:
        ValueError: naming the file that is missing and where to get it, or a ``data_root`` that is no string.
    """
    check_paths(data_root=data_root)
    if not data_root:
        raise ValueError(
            f"workload {workload!r} needs data_root, the folder that holds {folder}/{files[0]}: get {source}, "
            "unpack it and set data_root (--data-root)"
        )
    root = Path(data_root)
    found = root / folder if (root / folder).is_dir() else root
    for file in files:
        if not (found / file).is_file():
            raise ValueError(
                f"workload {workload!r}: data_root {data_root!r} has no file {folder}/{file} (nor {file}): "
                f"get {source} and unpack it there"
            )
    return found


def check_paths(**values: object) -> None:
    """Raise ``ValueError``, naming the setting and the value, unless every value is a string or a path."""
    for name, value in values.items():
        if not isinstance(value, (str, os.PathLike)):
            raise ValueError(
                f"{name} must be a string, not {value!r}: to --set, whose values are JSON, "
                f"give it as '{name}=\"{value}\"'"
            )
