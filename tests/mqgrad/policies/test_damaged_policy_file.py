"""Files that are no policy, or a damaged one: PolicyFileError, and nothing in them is executed."""

import copy
import io
import json
import os
import pathlib
import pickle
import zipfile
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from policies import make_policy, rewrite

from mqgrad.policies.observation import ObservationSchema
from mqgrad.policies.policy import PolicyFileError, load_policy

SIZE = ObservationSchema().size


@pytest.fixture
def saved(tmp_path: pathlib.Path) -> pathlib.Path:
    path = tmp_path / "policy.mqg"
    make_policy().save(path)
    return path


def npy(array: np.ndarray, allow_pickle: bool = False) -> bytes:
    file = io.BytesIO()
    np.lib.format.write_array(file, array, allow_pickle=allow_pickle)
    return file.getvalue()


def edit_document(path: pathlib.Path, **changes: Any) -> None:
    def change(entries: dict[str, bytes]) -> None:
        entries["policy.json"] = json.dumps(json.loads(entries["policy.json"]) | changes).encode()

    rewrite(path, change)


def test_missing_file() -> None:
    with pytest.raises(PolicyFileError, match=r"nowhere\.mqg.*does not exist"):
        load_policy("nowhere.mqg")


@pytest.mark.parametrize(
    "content", [b"", b"PK\x03\x04", b"not a zip", pickle.dumps([1]), b"PK\x05\x06" + bytes(18)]
)
def test_not_a_policy_file(tmp_path: pathlib.Path, content: bytes) -> None:
    path = tmp_path / "p.mqg"
    path.write_bytes(content)
    with pytest.raises(PolicyFileError, match=r"p\.mqg.*mqgrad export"):
        load_policy(path)


def test_what_is_told_of_a_file_is_short_whatever_is_in_it(saved: pathlib.Path) -> None:
    edit_document(saved, observation={"kind": "x" * 100_000})
    with pytest.raises(PolicyFileError, match=r"p.*\.mqg.*observation.*…; export") as refused:
        load_policy(saved)
    assert len(str(refused.value)) < 1000


def test_directory(tmp_path: pathlib.Path) -> None:
    with pytest.raises(PolicyFileError, match="cannot be read"):
        load_policy(tmp_path)


def test_named_pipe(tmp_path: pathlib.Path) -> None:
    """Refused unopened: who opens one waits for somebody to write to it."""
    os.mkfifo(pipe := tmp_path / "p.mqg")
    with pytest.raises(PolicyFileError, match=r"p\.mqg.*no regular file"):
        load_policy(pipe)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format": "something"}, "does not say"),
        ({"version": 2}, "version 2"),
        ({"version": None}, "version None"),
        ({"observation": {}}, "observation schema"),
        ({"num_layers": 10**9}, "num_layers"),
        ({"num_layers": True}, "num_layers"),
        ({"num_layers": 1}, "arrays"),
        ({"normalization_clip": None}, "arrays"),
        ({"normalization_clip": -1}, "clip"),
        ({"activation": ["tanh"]}, "activation"),
        ({"interval": "5"}, "interval"),
        ({"budget_seconds": 10**400}, "budget_seconds"),
        ({"surprise": 1}, "surprise"),
    ],
)
def test_wrong_document(saved: pathlib.Path, changes: dict[str, Any], message: str) -> None:
    edit_document(saved, **changes)
    with pytest.raises(PolicyFileError, match=message):
        load_policy(saved)


def test_older_schema_names_the_version(saved: pathlib.Path) -> None:
    edit_document(saved, observation=ObservationSchema().to_json() | {"version": 0})
    with pytest.raises(PolicyFileError, match="version is 0"):
        load_policy(saved)


@pytest.mark.parametrize(
    "text",
    [
        *(b"[1, 2]", b"{", b"\xff\xfe", b'{"format": NaN}', b'{"format": 1e999}'),
        *(b"[" * 100_000, b'{"format": "' + b"x" * 2**20),
    ],
)
def test_broken_json(saved: pathlib.Path, text: bytes) -> None:
    rewrite(saved, lambda entries: entries.update({"policy.json": text}))
    with pytest.raises(PolicyFileError):
        load_policy(saved)


def test_nesting_is_bounded(saved: pathlib.Path) -> None:
    """A policy that loaded could neither be copied nor saved."""

    def nested(depth: int) -> Any:
        return {"in": nested(depth - 1)} if depth % 2 else [nested(depth - 1)] if depth else 0

    edit_document(saved, provenance={"notes": nested(18)})
    copy.deepcopy(load_policy(saved)).save(saved)
    for depth in (19, 400):
        edit_document(saved, provenance={"notes": nested(depth)})
        with pytest.raises(
            PolicyFileError, match=r"policy\.mqg' has a policy\.json .* nested more than 20 deep"
        ):
            load_policy(saved)
        with pytest.raises(ValueError, match="more than 20 deep"):
            make_policy(provenance={"notes": nested(depth)}).save(saved)


class _Boom:
    executed = False

    def __reduce__(self) -> tuple[Any, ...]:
        return setattr, (_Boom, "executed", True)


_HEADER = "{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}"


def _claiming(shape: str) -> bytes:
    header = _HEADER.format(shape=shape).encode().ljust(117) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + bytes(64)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (npy(np.array([_Boom()], dtype=object), allow_pickle=True), "object"),
        (pickle.dumps(_Boom()), "damaged"),
        (npy(np.zeros((16, SIZE))), "float32"),
        (npy(np.zeros((16, SIZE), dtype=np.int64)), "int64"),
        (npy(np.zeros((16, SIZE), dtype=">f4")), "f4"),
        (npy(np.zeros((16, 17), dtype=np.float32)), "layer 0"),
        (npy(np.zeros((4, 4, SIZE), dtype=np.float32)), "shape"),
        (npy(np.full((16, SIZE), np.inf, dtype=np.float32)), "not finite"),
        (npy(np.zeros((16, SIZE), dtype=np.float32))[:-1], "shape"),
        (npy(np.zeros((16, SIZE), dtype=np.float32)) + b"x", "shape"),
        (_claiming("(1000000000, 1000000000)"), "shape"),
        (_claiming("(4294967296, 4294967296)"), "shape"),
        (_claiming("(-4, -4)"), "shape"),
        (_claiming("(" * 50), "damaged"),
        (b"", "damaged"),
    ],
)
def test_wrong_array(saved: pathlib.Path, content: bytes, message: str) -> None:
    rewrite(saved, lambda entries: entries.update({"layer0.weight.npy": content}))
    with pytest.raises(PolicyFileError, match=message):
        load_policy(saved)
    assert not _Boom.executed


@pytest.mark.parametrize("name", ["layer9.weight.npy", "evil.py", "../escape.npy", "policy.pkl"])
def test_extra_entry(saved: pathlib.Path, name: str) -> None:
    rewrite(saved, lambda entries: entries.update({name: npy(np.zeros(1, dtype=np.float32))}))
    with pytest.raises(PolicyFileError, match=r"arrays are|unexpected entry"):
        load_policy(saved)


@pytest.mark.parametrize("name", ["policy.json", "layer0.weight.npy", "normalization.std.npy"])
def test_missing_entry(saved: pathlib.Path, name: str) -> None:
    rewrite(saved, lambda entries: entries.pop(name))
    with pytest.raises(PolicyFileError, match=r"has no policy\.json|arrays are"):
        load_policy(saved)


def test_zip_bomb_is_refused_unread(saved: pathlib.Path) -> None:
    bomb = {"layer0.weight.npy": bytes(200 * 2**20)}
    rewrite(saved, lambda entries: entries.update(bomb), compression=zipfile.ZIP_DEFLATED)
    assert saved.stat().st_size < 2**20
    with pytest.raises(PolicyFileError, match="compressed"):
        load_policy(saved)


def test_huge_file_is_refused_unread(saved: pathlib.Path) -> None:
    with open(saved, "ab") as file:
        file.truncate(10 * 2**30)  # sparse
    with pytest.raises(PolicyFileError, match="bytes, more than"):
        load_policy(saved)


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_truncation_never_loads(saved: pathlib.Path, data: st.DataObject) -> None:
    content = _original(saved)
    saved.write_bytes(content[: data.draw(st.integers(0, len(content) - 1))])
    with pytest.raises(PolicyFileError):
        load_policy(saved)


@settings(max_examples=400, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_flipped_bits_are_refused_or_harmless(saved: pathlib.Path, data: st.DataObject) -> None:
    content = bytearray(_original(saved))
    for _ in range(data.draw(st.integers(1, 4))):
        position = data.draw(st.integers(0, len(content) - 1))
        content[position] ^= 1 << data.draw(st.integers(0, 7))
    saved.write_bytes(content)
    try:
        loaded = load_policy(saved)
    except PolicyFileError:
        return
    # Only bits without meaning, such as a date in the zip directory, may change unnoticed.
    original = make_policy()
    assert loaded._document() == original._document()
    for mine, theirs in zip(loaded.layers, original.layers, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(mine, theirs, strict=True))


def _original(path: pathlib.Path) -> bytes:
    make_policy().save(path)
    return path.read_bytes()


def test_a_second_document_is_refused(saved: pathlib.Path) -> None:
    """What a tool shows would not be what is loaded."""
    rewrite(saved, lambda entries: entries.update({"policy.json.npy": entries["policy.json"]}))
    with pytest.raises(PolicyFileError, match=r"unexpected entry 'policy.json.npy'"):
        load_policy(saved)
