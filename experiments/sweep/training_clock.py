"""How long a run has trained, told by its processes to those that change the rates of its link."""

import json
import time
from pathlib import Path

from mqgrad.files import replace_file


def clock_path(record: Path) -> Path:
    """Where a run whose record is written to a path tells its seconds."""
    return record.with_name(f"{record.name}.clock")


class TrainingClock:
    """Tells, in a file, when training goes on and when it pauses."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._told = 0

    def tell(self, seconds: float, *, goes_on: bool) -> None:
        """A run has trained for ``seconds``; it goes on, or pauses."""
        self._told += 1
        replace_file(self._path, json.dumps({"told": self._told, "seconds": seconds, "goes_on": goes_on}))


class FollowedClock:
    """The clock of such a file, in between by this process's own. What it is told, it knows when it is next asked."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._text = ""
        self._seconds = 0.0
        self._since: float | None = None  # when a run that goes on was heard of

    def seconds(self) -> float:
        """Seconds of training; 0 before the file is there."""
        self._read()
        return self._seconds + (0.0 if self._since is None else time.monotonic() - self._since)

    def _read(self) -> None:
        try:
            text = self._path.read_text()
        except FileNotFoundError:
            return
        if text != self._text:
            self._text, told = text, json.loads(text)
            self._seconds = told["seconds"]
            self._since = time.monotonic() if told["goes_on"] else None
