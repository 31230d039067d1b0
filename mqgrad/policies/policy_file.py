"""The frozen policy file: a zip of one JSON document and plain arrays, safe to read from a stranger.

Layout of a ``.mqg`` file, every entry stored without compression:

    policy.json     format, version, and what the policy says about itself
    NAME.npy        one little-endian float array each, NumPy format 1.0

Nothing in it can execute: there is no pickle, and object arrays are refused. The size of the file is checked before
it is opened and those of its entries before they are read, and stored entries cannot expand, so a zip bomb is refused
and not unpacked.
"""

import errno
import io
import json
import math
import os
import pathlib
import stat
import zipfile
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from ..files import replacing

FORMAT = "mqgrad-policy"
VERSION = 1
DOCUMENT = "policy.json"

MAX_FILE_BYTES = 16 * 2**20
MAX_DOCUMENT_BYTES = 2**20
MAX_ENTRIES = 64
MAX_DEPTH = 20
"""Of dictionaries and lists within each other in the document: who copies or writes a policy recurses over them."""
_NESTING = (Mapping, list, tuple)
_DTYPES = (np.dtype("<f4"), np.dtype("<f8"))
_MAX_HEADER_BYTES = 1000
_LONGEST_TOLD = 300  # characters
_REMEDY = "export the policy again with `mqgrad export`, or copy the file again"

Path = str | os.PathLike[str]
Array = npt.NDArray[Any]


class PolicyFileError(ValueError):
    """A policy file cannot be used; says which file, what is wrong with it and what to do."""


def file_error(path: Path, problem: str, remedy: str = _REMEDY) -> PolicyFileError:
    """The error to raise for ``problem`` with the file at ``path``; what it quotes of the file may be long."""
    problem = problem if len(problem) <= _LONGEST_TOLD else f"{problem[:_LONGEST_TOLD]}…"
    return PolicyFileError(f"policy file {os.fspath(path)!r} {problem}; {remedy}")


def write_policy_file(path: Path, document: Mapping[str, Any], arrays: Mapping[str, Array]) -> None:
    """Write ``document`` and ``arrays``: complete or not at all, and equal input gives equal bytes.

    Raises:
        PolicyFileError: it would be larger than what is read, or its document is nested more deeply.
        OSError: the folder does not exist, or the file cannot be written.
    """
    _check_depth(path, document, "nest its provenance less")
    text = json.dumps({"format": FORMAT, "version": VERSION, **document}, indent=2, allow_nan=False)
    entries = {DOCUMENT: text.encode()} | {
        f"{name}.npy": _array_bytes(array) for name, array in arrays.items()
    }
    _check_sizes(path, entries)
    folder = os.path.dirname(os.path.abspath(path))
    if not os.path.isdir(folder):  # else the error would name the temporary file
        raise FileNotFoundError(errno.ENOENT, "the folder of the policy file does not exist", folder)
    with (
        replacing(path, pathlib.Path(f"{os.fspath(path)}.{os.getpid()}.part")) as partial,
        zipfile.ZipFile(partial, "w", zipfile.ZIP_STORED) as archive,
    ):
        for name, content in entries.items():
            archive.writestr(zipfile.ZipInfo(name), content)


def _check_sizes(path: Path, entries: Mapping[str, bytes]) -> None:
    sizes = {name: len(content) for name, content in entries.items()}
    room = sum(200 + 2 * len(name) for name in entries)  # for what a zip archive notes of each
    if sizes[DOCUMENT] > MAX_DOCUMENT_BYTES or sum(sizes.values()) + room > MAX_FILE_BYTES:
        raise file_error(
            path,
            f"would have {sum(sizes.values())} bytes, {sizes[DOCUMENT]} of them in {DOCUMENT}: at most "
            f"{MAX_FILE_BYTES} and {MAX_DOCUMENT_BYTES} are read",
            "train a smaller network, or say less in its provenance",
        )


def _check_depth(path: Path, document: Mapping[str, Any], remedy: str = _REMEDY) -> None:
    level: list[Any] = [document]
    for _ in range(MAX_DEPTH):
        level = [item for value in level for item in _items(value)]
    if any(isinstance(value, _NESTING) for value in level):
        raise file_error(path, f"has a {DOCUMENT} that is nested more than {MAX_DEPTH} deep", remedy)


def _items(value: Any) -> Iterable[Any]:
    if isinstance(value, Mapping):
        return value.values()
    return value if isinstance(value, _NESTING) else ()


def read_policy_file(path: Path) -> tuple[dict[str, Any], dict[str, Array]]:
    """Read the document and the arrays of a policy file.

    Raises:
        PolicyFileError: whatever is wrong with the file.
    """
    try:
        entries = _read_entries(path)
        document = _parse_document(path, entries.pop(DOCUMENT, None))
        named = ((name.removesuffix(".npy"), content) for name, content in entries.items())
        return document, {name: _parse_array(path, name, content) for name, content in named}
    except (PolicyFileError, MemoryError):
        raise
    except FileNotFoundError as error:
        raise file_error(path, "does not exist", "check the path") from error
    except OSError as error:
        raise file_error(path, f"cannot be read ({error})", "check path and permissions") from error
    except Exception as error:  # parsers meet untrusted bytes: whatever they raise means the same thing
        raise file_error(path, f"is damaged or not a policy file ({error})") from error


def _read_entries(path: Path) -> dict[str, bytes]:
    found = os.stat(path)
    if not stat.S_ISREG(found.st_mode):  # to open a named pipe is to wait for who writes to it
        raise file_error(path, "cannot be read: it is no regular file", "check the path")
    size = found.st_size
    if size > MAX_FILE_BYTES:
        raise file_error(path, f"has {size} bytes, more than the {MAX_FILE_BYTES} allowed")
    with open(path, "rb") as file:
        if file.read(4) != b"PK\x03\x04":
            raise file_error(path, "is not a zip archive, hence not a policy file")
        with zipfile.ZipFile(file) as archive:
            infos = archive.infolist()
            _check_entries(path, infos, size)
            return {info.filename: archive.read(info) for info in infos}


def _check_entries(path: Path, infos: list[zipfile.ZipInfo], size: int) -> None:
    names = [info.filename for info in infos]
    if DOCUMENT not in names:
        raise file_error(
            path, f"has no {DOCUMENT}, hence is not a policy file (an SB3 model must be exported)"
        )
    if len(infos) > MAX_ENTRIES or len(set(names)) != len(names):
        raise file_error(path, f"has {len(infos)} entries, and at most {MAX_ENTRIES} different ones may be")
    for info in infos:
        is_array = info.filename.endswith(".npy") and info.filename != f"{DOCUMENT}.npy"
        if info.filename != DOCUMENT and not is_array:
            raise file_error(path, f"has an unexpected entry {info.filename!r}")
        if info.compress_type != zipfile.ZIP_STORED or info.file_size != info.compress_size:
            raise file_error(path, f"has a compressed entry {info.filename!r}, which is not allowed")
    if sum(info.file_size for info in infos) > size:
        raise file_error(path, "declares entries larger than the file, or overlapping ones")


def _parse_document(path: Path, content: bytes | None) -> dict[str, Any]:
    assert content is not None
    if len(content) > MAX_DOCUMENT_BYTES:
        raise file_error(path, f"has a {DOCUMENT} of more than {MAX_DOCUMENT_BYTES} bytes")
    document = json.loads(content.decode("utf-8"), parse_constant=_refuse_constant, parse_float=_finite)
    if not isinstance(document, dict) or document.pop("format", None) != FORMAT:
        raise file_error(path, f"has a {DOCUMENT} that does not say it is a {FORMAT}")
    _check_depth(path, document)
    version = document.pop("version", None)
    if version != VERSION or type(version) is not int:
        raise file_error(
            path,
            f"is written in version {version!r} of the format, and this mqgrad reads version {VERSION}",
            "export the policy again with this version of mqgrad, or install the one that wrote it",
        )
    return document


def _parse_array(path: Path, name: str, content: bytes) -> Array:
    file = io.BytesIO(content)
    if np.lib.format.read_magic(file) != (1, 0):
        raise file_error(path, f"has an array {name!r} that is not in NumPy format 1.0")
    shape, _, dtype = np.lib.format.read_array_header_1_0(file, max_header_size=_MAX_HEADER_BYTES)
    if dtype not in _DTYPES:
        raise file_error(path, f"has an array {name!r} of {dtype}, and only float32 and float64 are allowed")
    # Checked before reading, because NumPy allocates what the header claims. Plain ints cannot overflow.
    elements = 1
    for length in shape:
        elements *= int(length)
    if len(shape) > 2 or any(n < 1 for n in shape) or elements * dtype.itemsize != len(content) - file.tell():
        raise file_error(path, f"has an array {name!r} that does not hold its shape {shape}")
    file.seek(0)
    return np.lib.format.read_array(file, allow_pickle=False, max_header_size=_MAX_HEADER_BYTES)


def _array_bytes(array: Array) -> bytes:
    file = io.BytesIO()
    contiguous = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<"))
    np.lib.format.write_array(file, contiguous, version=(1, 0), allow_pickle=False)
    return file.getvalue()


def _finite(digits: str) -> float:
    number = float(digits)
    return number if math.isfinite(number) else _refuse_constant(digits)


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{DOCUMENT} contains {name}, which is not JSON")
