"""Settings of workloads as the command line takes them."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

_PYTHON = {"True": True, "False": False, "None": None}


def parse_settings(items: Sequence[str], data_root: Path | None = None) -> dict[str, Any]:
    """``["width=32", "learning_rate=0.1"]`` → values read as JSON where they are JSON, as ``True``, ``False`` and
    ``None`` of Python's where they are these, else as text.

    Raises:
        ValueError: an item without ``=``.
    """
    settings: dict[str, Any] = {} if data_root is None else {"data_root": str(data_root.absolute())}
    for item in items:
        name, separator, value = item.partition("=")
        if not separator:
            raise ValueError(f"{item!r} is not NAME=VALUE, as --set takes it")
        settings[name] = _value(value)
    return settings


def _value(text: str) -> Any:
    if text in _PYTHON:
        return _PYTHON[text]
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text
