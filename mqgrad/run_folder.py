"""The folder of a run: one that can be written, for one process at a time."""

import contextlib
import fcntl
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

LOCK_FILE = ".lock"


def check_writable(folder: Path) -> None:
    """Create ``folder`` and prove that a file can be written there.

    Raises:
        OSError: naming the folder and the remedy.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise OSError(
            error.errno, f"cannot write to {folder} ({error.strerror}); choose another output folder"
        ) from error


@contextlib.contextmanager
def only_process_in(folder: Path) -> Iterator[None]:
    """Keep other processes out of a folder. The file stays; the kernel gives the lock back when its owner ends.

    Raises:
        ValueError: another process is at work there, which the message names.
        OSError: its file system has no locks, as some mounts of NFS.
    """
    with (folder / LOCK_FILE).open("a+") as file:  # not emptied: it may be another's
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(
                f"process {_owner(file.name)} is at work in {folder}: wait for its end, or choose another folder"
            ) from None
        except OSError as error:
            raise OSError(
                error.errno,
                f"{folder} cannot be locked ({error.strerror}), and so not kept from a second process: choose a "
                "folder on a local disk, or have locks turned on where this one is mounted",
            ) from error
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()
        yield


def _owner(path: str) -> str:
    return Path(path).read_text().strip() or "(unknown)"


def check_file(path: Path | None) -> None:
    """Find whether a file that is to be written in the end, if any, could be.

    Raises:
        OSError: its folder does not exist or cannot be written, or it is one itself.
    """
    if path is None:
        return
    folder = path.absolute().parent
    if not folder.is_dir():
        raise FileNotFoundError(f"there is no folder {folder} for {path}")
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder; give a file")
    if path.exists() and not path.is_file():  # as /dev/stdout; written to in its place
        if not os.access(path, os.W_OK):
            raise PermissionError(f"{path} cannot be written to")
        return
    check_writable(folder)
