"""The text form of a configuration: ``name:key=value,key=value``."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeVar, get_origin

from .widths import Width, parse_width, parse_widths

T = TypeVar("T")


def _read_flag(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError(text)
    return text.lower() == "true"


_READERS: dict[Any, tuple[Callable[[str], Any], str]] = {
    str: (str, "text"),
    int: (int, "a whole number"),
    int | None: (int, "a whole number"),
    float: (float, "a number"),
    float | None: (float, "a number"),
    bool: (_read_flag, "true or false"),
    Width: (parse_width, "a number of bits, such as 4 or 1/4"),
    tuple[Width, ...]: (parse_widths, "numbers of bits joined by +, such as 1/4+2+8"),
}


def build(cls: type[T], arguments: str, **defaults: Any) -> T:
    """Construct a dataclass from ``key=value,key=value``; the keys are the arguments of its constructor.

    A value without a key is for the first argument of a class that takes it by position (``4`` for ``FixedBits``).
    A tuple of widths is joined by plus signs: ``widths=1/4+2+8``.

    Args:
        defaults: values that take the place of the class's own defaults, where it has such arguments.

    Raises:
        ValueError: naming the argument that is unknown, missing, given twice or wrong.
    """
    fields = {field.name: field for field in dataclasses.fields(cls) if field.init}  # type: ignore[arg-type]
    values = {name: value for name, value in defaults.items() if name in fields}
    given: set[str] = set()
    for item in filter(None, arguments.split(",")):
        name, text = _split(item, fields)
        if name in given:
            raise ValueError(f"argument {name!r} is given twice")
        given.add(name)
        values[name] = _read(name, text, fields[name].type)
    for name, field in fields.items():
        has_default = {field.default, field.default_factory} != {dataclasses.MISSING}
        if name not in values and not has_default:
            raise ValueError(f"argument {name!r} is missing")
    return cls(**values)


def build_named(what: str, known: Mapping[str, type[Any]], spec: str, **defaults: Any) -> Any:
    """Construct one of some dataclasses from ``name`` or ``name:key=value,key=value``.

    Args:
        what: they are, for errors.
        defaults: as of :func:`build`.

    Raises:
        ValueError: for an unknown name, listing the known ones; as :func:`build`.
    """
    name, _, arguments = spec.partition(":")
    if name not in known:
        raise ValueError(
            f"unknown {what} {spec!r}; known: {', '.join(known)} (as name, or name:argument=value,…)"
        )
    try:
        return build(known[name], arguments, **defaults)
    except ValueError as error:
        raise ValueError(f"{what} {spec!r}: {error}") from None


def _split(item: str, fields: dict[str, dataclasses.Field[Any]]) -> tuple[str, str]:
    name, equals, text = item.partition("=")
    if not equals:
        name, text = next((f.name for f in fields.values() if not f.kw_only), ""), item
    if not name:
        raise ValueError(f"{item!r} must be written as argument=value; known: {', '.join(fields)}")
    if name not in fields:
        raise ValueError(f"unknown argument {name!r}; known: {', '.join(fields)}")
    return name, text


def _read(name: str, text: str, kind: Any) -> Any:
    reader, meaning = (str, "text") if get_origin(kind) is Literal else _READERS[kind]
    try:
        return reader(text)
    except ValueError:
        raise ValueError(f"{name} {text!r} is not {meaning}") from None
