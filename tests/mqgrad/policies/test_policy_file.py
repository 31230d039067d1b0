"""The file of a frozen policy: equal decisions after a round trip."""

import errno
import json
import os
import pathlib
import stat

import numpy as np
import pytest
from policies import decisions, make_policy, rewrite

from mqgrad.controllers.base import traits_of
from mqgrad.policies import policy_file
from mqgrad.policies.observation import ObservationSchema
from mqgrad.policies.policy import load_policy


@pytest.mark.parametrize("action", ["absolute", "keep-or-increase"])
@pytest.mark.parametrize("activation", ["tanh", "relu"])
@pytest.mark.parametrize("kind", ["full", "loss", "authors"])
def test_round_trip_decides_the_same(tmp_path: pathlib.Path, kind: str, activation: str, action: str) -> None:
    policy = make_policy(schema=ObservationSchema(kind=kind), activation=activation, action=action)
    policy.save(tmp_path / "p.mqg")
    loaded = load_policy(tmp_path / "p.mqg")
    assert loaded.provenance == policy.provenance
    assert loaded._document() == policy._document()
    assert decisions(loaded) == decisions(policy)


def test_a_policy_that_learned_without_a_budget_sees_no_progress_where_one_is_given(
    tmp_path: pathlib.Path,
) -> None:
    """It would meet numbers that it has never seen."""
    policy = make_policy(budget_seconds=None)
    policy.save(tmp_path / "p.mqg")
    assert decisions(load_policy(tmp_path / "p.mqg", budget_seconds=3.0)) == decisions(policy)
    assert decisions(make_policy(budget_seconds=3.0)) != decisions(policy)


def test_saving_twice_gives_the_same_bytes(tmp_path: pathlib.Path) -> None:
    make_policy().save(tmp_path / "a.mqg")
    load_policy(tmp_path / "a.mqg").save(tmp_path / "b.mqg")
    assert (tmp_path / "a.mqg").read_bytes() == (tmp_path / "b.mqg").read_bytes()


def test_others_may_read_it_as_the_umask_allows(tmp_path: pathlib.Path) -> None:
    before = os.umask(0o022)
    try:
        make_policy().save(path := tmp_path / "p.mqg")
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o644


def test_what_fails_leaves_the_former_file(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_policy().save(path := tmp_path / "p.mqg")
    content = path.read_bytes()

    def no_space(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.replace", no_space)
    with pytest.raises(OSError, match="No space"):
        make_policy(provenance={"run": 2}).save(path)
    assert [(p, p.read_bytes()) for p in tmp_path.iterdir()] == [(path, content)]


def test_what_could_not_be_read_is_not_written(tmp_path: pathlib.Path) -> None:
    make_policy().save(path := tmp_path / "p.mqg")
    content = path.read_bytes()
    with pytest.raises(policy_file.PolicyFileError, match=r"p\.mqg' would have .* less in its provenance"):
        make_policy(provenance={"notes": "x" * policy_file.MAX_DOCUMENT_BYTES}).save(path)
    assert path.read_bytes() == content


def test_a_network_that_just_fits_can_be_read(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a zip archive adds to the arrays counts when they are read."""
    make_policy().save(path := tmp_path / "p.mqg")
    size = path.stat().st_size
    for limit in range(size - 200, size + 5000, 40):
        monkeypatch.setattr(policy_file, "MAX_FILE_BYTES", limit)
        try:
            make_policy().save(path)
        except policy_file.PolicyFileError:
            continue
        load_policy(path)
        return
    pytest.fail("nothing fits")


def test_budget_of_the_deployed_run_replaces_the_trained_one(tmp_path: pathlib.Path) -> None:
    make_policy().save(path := tmp_path / "p.mqg")
    assert load_policy(path).budget_seconds == 30.0
    assert load_policy(path, budget_seconds=99.0).budget_seconds == 99.0
    for hours in (np.int64(2), np.float32(2)):
        deployed = load_policy(path, budget_seconds=hours * 3600)
        deployed.save(path)  # as JSON
        assert load_policy(path).budget_seconds == 7200
    with pytest.raises(ValueError, match="budget_seconds -1"):
        load_policy(path, budget_seconds=-1)


def test_provenance_must_be_json(tmp_path: pathlib.Path) -> None:
    with pytest.raises(ValueError, match="provenance"):
        make_policy(provenance={"model": object()}).save(tmp_path / "p.mqg")
    assert not list(tmp_path.iterdir())


def test_a_file_without_an_opening_opens_with_a_whole_interval(tmp_path: pathlib.Path) -> None:
    make_policy().save(path := tmp_path / "p.mqg")
    assert traits_of(load_policy(path)).opening == 3

    def forget(entries: dict[str, bytes]) -> None:
        document = json.loads(entries["policy.json"])
        del document["opening"]
        entries["policy.json"] = json.dumps(document).encode()

    rewrite(path, forget)
    policy = load_policy(path)
    assert traits_of(policy).opening is None  # a whole interval
    assert policy.interval == 5
