"""Type aliases for JSON objects, settings and progress callbacks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

JsonObject: TypeAlias = dict[str, Any]  # an object that is read from or written to JSON
SettingValues: TypeAlias = Mapping[str, Any]  # settings or options by name, not checked yet
Progress: TypeAlias = Callable[[int, int], None]  # called with the number done and the total
