"""Settings of workloads as the command line takes them."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def parse_settings(items: Sequence[str], data_root: Path | None = None) -> dict[str, Any]:
    """``["width=32", "learning_rate=0.1"]`` → values read as JSON where they are JSON, else as text.

    Raises:
        ValueError: an item without ``=``.
    """
    settings: dict[str, Any] = {} if data_root is None else {"data_root": str(data_root.absolute())}
    for item in items:
        name, separator, value = item.partition("=")
        if not separator:
            raise ValueError(f"{item!r} is not NAME=VALUE, as --set takes it")
        try:
            settings[name] = json.loads(value)
        except json.JSONDecodeError:
            settings[name] = value
    return settings
