"""What the scripts of this folder have in common: options, the file that they write in the end, tables.

Imports the package where it is used only: ``cuda_codec.py`` builds it first.
"""

import argparse
import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

Part = TypeVar("Part")


def parser(description: str | None) -> argparse.ArgumentParser:
    """Of a script's options, with its docstring as it stands."""
    return argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )


def count(text: str) -> int:
    """The type of an option: an integer above 0."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not above 0")
    return value


def listed(parse: Callable[[str], Part]) -> Callable[[str], list[Part]]:
    """The type of an option: what ``parse`` makes of parts joined by commas; its ``ValueError`` is shown."""

    def parts(text: str) -> list[Part]:
        try:
            return [parse(part) for part in text.split(",")]
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from error

    return parts


def output_file(text: str) -> Path:
    """The type of an option; refuses what could not be written, before anything is measured."""
    path = Path(text)
    if not text or path.is_dir():
        raise argparse.ArgumentTypeError(f"{text!r} is a folder; give a file")
    # A file that is there is replaced, by a new one in its folder.
    place = path if path.exists() and not path.is_file() else path.resolve().parent
    if not os.access(place, os.W_OK):
        raise argparse.ArgumentTypeError(f"{text!r} cannot be written: there is no writable {place}")
    return path


def write_report(path: Path, figures: Mapping[str, Any], *, launcher: str = "python") -> None:
    """Write figures as JSON, with where they come from (:func:`mqgrad.experiments.provenance.script_origin`); what is
    there stays until that is complete."""
    from mqgrad.experiments.provenance import script_origin
    from mqgrad.files import replace_file

    replace_file(path, json.dumps({**script_origin(launcher), **figures}, indent=1) + "\n")


def print_markdown(header: Sequence[object], rows: Iterable[Sequence[object]]) -> None:
    """A table, row by row as they come."""
    print(f"| {' | '.join(map(str, header))} |")
    print("|---" * len(header) + "|")
    for row in rows:
        print(f"| {' | '.join(map(str, row))} |")
