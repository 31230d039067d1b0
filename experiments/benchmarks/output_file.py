"""An option of benchmarks: the file that they write in the end, some of them after many minutes."""

import argparse
import os
from pathlib import Path


def output_file(text: str) -> Path:
    """The type of such an option; refuses what could not be written, before anything is measured."""
    path = Path(text)
    if not text or path.is_dir():
        raise argparse.ArgumentTypeError(f"{text!r} is a folder; give a file")
    place = path if path.exists() else path.absolute().parent
    if not os.access(place, os.W_OK):
        raise argparse.ArgumentTypeError(f"{text!r} cannot be written: there is no writable {place}")
    return path
