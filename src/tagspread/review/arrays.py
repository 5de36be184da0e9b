"""Files of arrays in ``RUN/review``, with facts in JSON: written in one step, and checked when they are read.

They are made from the run, so that a file that is missing, damaged or of another version is no error: it is made again.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from tagspread.aliases import JsonObject
from tagspread.files import atomic_file
from tagspread.run.schema import Schema, parse_object, validate

FACTS = "facts"
Arrays: TypeAlias = Mapping[str, npt.NDArray[Any]]


def write_arrays(file: Path, facts: JsonObject, arrays: Arrays) -> None:
    """Write facts and arrays into a file; its folder is made if necessary."""
    file.parent.mkdir(exist_ok=True)
    text = json.dumps(facts).encode()  # escapes keep names that are not UTF-8
    with atomic_file(file) as opened:
        np.savez(opened, **{FACTS: np.frombuffer(text, np.uint8)}, **arrays)  # type: ignore[arg-type]


def read_arrays(file: Path, schema: Schema, version: int) -> tuple[JsonObject, Arrays] | None:
    """Read facts and arrays; return None if the file is missing, damaged, or of another version.

    Args:
        file: the file.
        schema: what the facts must be.
        version: what ``facts["format"]`` must be.
    """
    try:
        with zipfile.ZipFile(file) as opened:
            # not compressed, so that the arrays are no larger than the file
            if any(entry.compress_type != zipfile.ZIP_STORED for entry in opened.infolist()):
                return None
        with np.load(file, allow_pickle=False) as loaded:
            arrays = {name: loaded[name] for name in loaded.files}
        facts = parse_object(arrays.pop(FACTS).tobytes(), file)
        if facts.get("format") != version:
            return None
        validate(facts, schema, file)
    except Exception:  # damaged archives raise many types
        return None
    return facts, arrays


def fits(array: object, kinds: str, shape: Sequence[int | None]) -> bool:
    """Return whether an array has one of some kinds of numbers, and a shape, in which None stands for any length.

    >>> fits(np.zeros((3, 2)), "f", (None, 2)), fits(np.zeros((3, 2)), "iu", (None, 2))
    (True, False)
    """
    if not isinstance(array, np.ndarray) or array.dtype.kind not in kinds or array.ndim != len(shape):
        return False
    return all(wanted in (None, length) for wanted, length in zip(shape, array.shape, strict=True))
