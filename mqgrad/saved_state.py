"""What a saved state must look like: what is missing or unknown in it is named, with the remedy."""

import copy
import dataclasses
from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeVar, runtime_checkable

from .checks import plain_number

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

REMEDY = "start anew, or go on with the version of mqgrad that saved it"

_T = TypeVar("_T", bound="DataclassInstance")


def check_version(found: object, expected: int, owner: str) -> None:
    """Raise ``ValueError`` unless a saved state has the format that is read here; None if it tells none."""
    if found != expected:
        version = "no format version" if found is None else f"format version {found}"
        raise ValueError(
            f"the saved state of {owner} has {version}, and format version {expected} is expected: {REMEDY}"
        )


def check_run(saved: Mapping[str, Any], own: Mapping[str, Any], owner: str) -> None:
    """Raise ``ValueError`` unless the run whose state is ``own`` can go on from a saved one."""
    if not isinstance(saved, Mapping):
        raise ValueError(f"{owner}: {type(saved).__name__} is no state, which is what state_dict() returned")
    check_version(saved.get("format_version"), own["format_version"], owner)
    check_keys(saved, own, owner)
    if saved["config"] != own["config"]:
        raise ValueError(
            f"{owner}: the state was saved with {_but_for(saved['config'], own['config'])} and cannot be loaded into "
            f"a run with {_but_for(own['config'], saved['config'])}; construct CompressionState with the saved "
            "arguments, on as many ranks"
        )
    if saved["rank"] != own["rank"]:
        raise ValueError(
            f"{owner}: the state is rank {saved['rank']}'s, and each rank's residuals are its own: save the state of "
            "every rank, to a file each, and load its own on each"
        )
    then, now = (_controller_text(state["controller_class"]) for state in (saved, own))
    if then != now:
        raise ValueError(
            f"{owner}: the state was saved with {then} and cannot be loaded with {now}; construct CompressionState "
            f"with {then}"
        )


def _but_for(config: str, other: str) -> str:
    """What only the first of two configurations has."""
    common = other.split(", ")
    return ", ".join(part for part in config.split(", ") if part not in common)


def _controller_text(controller_class: str | None) -> str:
    return "no controller" if controller_class is None else f"a controller {controller_class}"


def check_keys(saved: Mapping[Any, Any], expected: Iterable[str], owner: str) -> None:
    """Raise ``ValueError``, naming them, if a saved state lacks entries or has others."""
    wanted = set(expected)
    missing, unknown = sorted(wanted - set(saved)), sorted(map(str, set(saved) - wanted))
    told = [f"{what} {', '.join(keys)}" for what, keys in (("lacks", missing), ("also has", unknown)) if keys]
    if told:
        raise ValueError(f"the saved state of {owner} {' and '.join(told)}: {REMEDY}")


def restored(kind: type[_T], saved: Mapping[str, Any]) -> _T:
    """The dataclass that ``dataclasses.asdict`` was called on.

    Raises:
        ValueError: naming the fields that are missing or unknown.
    """
    check_keys(saved, [field.name for field in dataclasses.fields(kind)], kind.__name__)
    return kind(**saved)


def restored_settings(kind: type[_T], saved: Mapping[str, Any]) -> _T:
    """As :func:`restored`, for settings, which later versions add to: one that was not saved takes its default.

    So the default of a setting that is added must be what was done before there was a choice; where it is not,
    whoever reads the file has to fill in what was.

    Raises:
        ValueError: naming the fields that are unknown, or missing though they have no default.
    """
    fields = dataclasses.fields(kind)
    missing = dataclasses.MISSING
    optional = [f.name for f in fields if (f.default, f.default_factory) != (missing, missing)]
    check_keys({**dict.fromkeys(optional), **saved}, [f.name for f in fields], kind.__name__)
    return kind(**saved)


@runtime_checkable
class Stateful(Protocol):
    """A part that saves and restores itself."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


def saved_fields(owner: object, names: Iterable[str]) -> dict[str, Any]:
    """Attributes by name, private ones without the underscore: the states of parts that have one, copies of all
    others."""
    return {_key(name): _saved(getattr(owner, name)) for name in names}


def plain_state(value: Any) -> Any:
    """A state whose numbers of NumPy's, as arguments of a controller may be, are Python's: ``torch.load`` refuses
    others."""
    if isinstance(value, dict):
        return {plain_number(key): plain_state(part) for key, part in value.items()}
    if type(value) in (list, tuple):  # others are made otherwise
        return type(value)(map(plain_state, value))
    return plain_number(value)


def _key(name: str) -> str:
    return name.removeprefix("_")


def _saved(value: Any) -> Any:
    return value.state_dict() if isinstance(value, Stateful) else copy.deepcopy(value)


def state_names(owner: "DataclassInstance") -> list[str]:
    """Fields that no argument of the constructor sets: the state of a rule, which has all of it in such fields."""
    return [field.name for field in dataclasses.fields(owner) if not field.init]


def restore_all(owner: object, names: Collection[str], state: Mapping[str, Any], told: str) -> None:
    """Restore what :func:`saved_fields` returned, unless :func:`check_keys` refuses it as a state of ``told``."""
    check_keys(state, map(_key, names), told)
    restore_fields(owner, names, state)


def restore_fields(owner: object, names: Iterable[str], state: Mapping[str, Any]) -> None:
    """Restore what :func:`saved_fields` returned, after :func:`check_keys`."""
    for name in names:
        part = getattr(owner, name)
        if isinstance(part, Stateful):
            part.load_state_dict(state[_key(name)])
        else:
            setattr(owner, name, copy.copy(state[_key(name)]))


class SavesFields:
    """Saves and restores the fields that its class names."""

    __slots__ = ()  # for subclasses that have them

    state_fields: ClassVar[tuple[str, ...]] = ()
    """Attributes that are the state."""
    state_owner: ClassVar[str] = ""
    """Whose state it is, in messages; empty: ``repr(self)``."""

    def state_dict(self) -> dict[str, Any]:
        """State as :func:`saved_fields` has it."""
        return saved_fields(self, self.state_fields)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what ``state_dict`` returned.

        Raises:
            ValueError: naming the entries that are missing or unknown.
        """
        restore_all(self, self.state_fields, state, self.state_owner or repr(self))
