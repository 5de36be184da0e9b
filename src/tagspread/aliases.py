"""Names for types that several rooms use."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

JsonObject: TypeAlias = dict[str, Any]  # as json.loads returns it: only for what is read from or written to JSON
SettingValues: TypeAlias = Mapping[str, Any]  # settings or options by name, as given: whoever takes them checks them
Progress: TypeAlias = Callable[[int, int], None]  # called with how many are done, out of how many
