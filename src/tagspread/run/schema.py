"""The one place where JSON that a run wrote is read back: parsed, and validated against a schema.

Files of a run may be damaged, edited, or come from somebody else. Everything that is used later is checked here, so
that a wrong value is one message that names the file and the key, and never a traceback later on.

A schema is a :class:`Kind` (a plain value), or :class:`Maybe`, :class:`ListOf`, :class:`MapOf`, :class:`Record` of
other schemas. Keys that no schema names are allowed, so that a later version may add some.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, Protocol

from tagspread.aliases import JsonObject
from tagspread.errors import TagspreadError
from tagspread.files import refuse_special
from tagspread.vision.sizes import LARGEST

LARGEST_COUNT = 2**53
LONGEST_NAME = 255  # bytes of a file name
DEEPEST = 8  # levels of a value that is only displayed
SHOWN = 60  # characters of a wrong value that a message repeats


class Schema(Protocol):
    """What a value must be."""

    def wrong(self, value: Any, key: str) -> Iterator[str]:
        """Yield what is wrong with a value, each time with its key."""


@dataclass(frozen=True)
class Kind:
    """A plain value.

    Attributes:
        words: what it must be, for messages.
        accepts: whether a value is of this kind.
    """

    words: str
    accepts: Callable[[Any], bool]

    def wrong(self, value: Any, key: str) -> Iterator[str]:
        """Yield what is wrong with a value, each time with its key."""
        if not self.accepts(value):
            yield f"{key} is {_shown(value)}, not {self.words}"


@dataclass(frozen=True)
class Maybe:
    """A value that may be null."""

    item: Schema

    def wrong(self, value: Any, key: str) -> Iterator[str]:
        """Yield what is wrong with a value, each time with its key."""
        if value is not None:
            yield from self.item.wrong(value, key)


@dataclass(frozen=True)
class ListOf:
    """A list.

    Attributes:
        item: schema of each item.
        least: smallest length.
        length: the only length; any if None.
    """

    item: Schema
    least: int = 0
    length: int | None = None

    def wrong(self, value: Any, key: str) -> Iterator[str]:
        """Yield what is wrong with a value, each time with its key."""
        if not isinstance(value, list):
            yield f"{key} is {_shown(value)}, not a list"
        elif len(value) < self.least or self.length not in (None, len(value)):
            yield f"{key} has {len(value)} items, not {self.length or f'at least {self.least}'}"
        else:
            for place, item in enumerate(value):
                yield from self.item.wrong(item, f"{key}[{place}]")


@dataclass(frozen=True)
class MapOf:
    """An object with any keys.

    Attributes:
        item: schema of each value.
    """

    item: Schema

    def wrong(self, value: Any, key: str) -> Iterator[str]:
        """Yield what is wrong with a value, each time with its key."""
        if not isinstance(value, dict):
            yield f"{key} is {_shown(value)}, not a JSON object"
            return
        for name, item in value.items():
            yield from self.item.wrong(item, f"{key}.{_shown(name)}")


@dataclass(frozen=True)
class Record:
    """An object with known keys; others are allowed and not checked.

    Attributes:
        required: schemas of the keys that must be there.
        optional: schemas of the keys that may be there.
        rule: a check of the values together; it returns what is wrong, or an empty string.
    """

    required: Mapping[str, Schema] = field(default_factory=dict)
    optional: Mapping[str, Schema] = field(default_factory=dict)
    rule: Callable[[JsonObject], str] | None = None

    def wrong(self, value: Any, key: str) -> Iterator[str]:
        """Yield what is wrong with a value, each time with its key."""
        if not isinstance(value, dict):
            yield f"{key or 'it'} is {_shown(value)}, not a JSON object"
            return
        prefix = f"{key}." if key else ""
        for name in self.required:
            if name not in value:
                yield f"{prefix}{name} is missing"
        for name, item in chain(self.required.items(), self.optional.items()):
            if name in value:
                yield from item.wrong(value[name], prefix + name)
        if self.rule is not None and (wrong := self.rule(value)):
            yield f"{key}: {wrong}" if key else wrong


# --- plain values -----------------------------------------------------------------------------------------------------


def _is_text(value: object) -> bool:
    """Return whether a value is text that can be written to a file again."""
    if not isinstance(value, str):
        return False
    try:
        value.encode("utf-8", "surrogateescape")  # bytes of file names; a lone half of a character is damage
    except UnicodeEncodeError:
        return False
    return True


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= 1e308  # not NaN or inf


def _is_whole(value: object, least: int, most: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def _is_plain(value: object, depth: int = DEEPEST) -> bool:
    """Return whether a value can be displayed: no endless nesting, no text that cannot be written."""
    if isinstance(value, dict | list):
        items: Iterator[object] = chain(value, value.values()) if isinstance(value, dict) else iter(value)
        return depth > 0 and all(_is_plain(item, depth - 1) for item in items)
    return _is_text(value) if isinstance(value, str) else isinstance(value, bool) or value is None or _is_float(value)


def _is_float(value: object) -> bool:
    """Return whether a value is a number that fits a float; training that diverged writes NaN and Infinity."""
    return isinstance(value, float) or _is_number(value)


def _is_file_name(value: object) -> bool:
    if not _is_text(value) or "\0" in str(value):
        return False
    return 0 < len(Path(str(value)).name.encode("utf-8", "surrogateescape")) <= LONGEST_NAME


TEXT = Kind("text", _is_text)
NAME = Kind("text with at least one character", lambda value: _is_text(value) and bool(value))
FILE_NAME = Kind("the name of a file", _is_file_name)
YES_OR_NO = Kind("true or false", lambda value: isinstance(value, bool))
NUMBER = Kind("a finite number", _is_number)
POSITIVE = Kind("a number above 0", lambda value: _is_number(value) and value > 0)
SHARE = Kind("a number from 0 to 1", lambda value: _is_number(value) and 0 <= value <= 1)
FLOAT = Kind("a number", _is_float)
COUNT = Kind("a whole number of at least 0", lambda value: _is_whole(value, 0, LARGEST_COUNT))
SIDE = Kind(f"a whole number from 1 to {LARGEST}", lambda value: _is_whole(value, 1, LARGEST))
PLAIN = Kind("a plain value", _is_plain)
NAMES = ListOf(TEXT)
PAIR = ListOf(NUMBER, length=2)


# --- the files of a run -----------------------------------------------------------------------------------------------

PLAN = Record(
    optional={
        "quality": TEXT, "time": Maybe(NUMBER), "unlabeled": COUNT, "unlabeled_available": COUNT,
        "estimated_seconds": NUMBER, "estimated_steps": MapOf(NUMBER),
    }
)  # fmt: skip

CONFIG = Record(
    required={
        "tagspread": TEXT,
        "settings": Record(
            required={"method": TEXT, "backbone": TEXT},
            optional={"mode": TEXT, "weights": TEXT, "selection": TEXT, "method_options": MapOf(PLAIN)},
            rule=lambda settings: "" if _is_plain(settings) else "one of them is not a plain value",
        ),
    },
    optional={
        "data": Record(
            optional={
                "images": Maybe(NAME), "labels": Maybe(NAME), "test_labels": Maybe(NAME), "cache": Maybe(NAME),
                "answers": Maybe(NAME), "compare": Maybe(NAME),
                "test_share": Maybe(NUMBER), "table_options": MapOf(PLAIN), "bench": Maybe(MapOf(PLAIN)),
            }
        ),
        "keep_better": YES_OR_NO,
        "keep": TEXT,
        "plan": PLAN,
        "id": TEXT,
    },
)  # fmt: skip


def _bins(plain: JsonObject) -> str:
    lengths = {name: len(plain[name]) for name in ("count", "predicted", "observed", "low", "high")}
    if len(set(lengths.values())) > 1 or len(plain["edges"]) != lengths["count"] + 1:
        return "its lists are not of one length"
    return ""


RELIABILITY = Record(
    required={name: ListOf(Maybe(NUMBER)) for name in ("edges", "predicted", "observed", "low", "high")}
    | {"count": ListOf(NUMBER), "error": NUMBER},
    rule=_bins,
)

RATES = ListOf(Maybe(ListOf(SHARE, length=3)))  # value, low, high of each class
EXPECTED = Record(required={"confidence": SHARE, "precision": RATES, "recall": RATES})


def _decision(facts: JsonObject) -> str:
    decision, classes = facts.get("decision", {}), len(facts["classes"])
    expected = decision.get("expected") or {}
    lists = {"positives": decision.get("positives")} | {
        f"expected.{name}": expected.get(name) for name in ("precision", "recall")
    }
    wrong = [name for name, values in lists.items() if values is not None and len(values) != classes]
    return f"decision.{wrong[0]} does not have one item per class" if wrong else ""


LABELS = Record(
    required={
        "format": COUNT,
        "classes": ListOf(NAME, least=1),
        "thresholds": ListOf(Maybe(NUMBER)),
        "calibration": Record(
            required={"slope": ListOf(POSITIVE), "intercept": ListOf(NUMBER)},
            optional={
                "fitted_on": Maybe(TEXT), "classes_with_pooled_fit": NAMES,
                "reliability": Maybe(Record(required={"before": RELIABILITY, "after": RELIABILITY})),
            },
        ),
        "preprocessing": Record(required={"shape": ListOf(SIDE, length=3)}),
        "backbone": TEXT,
        "head": TEXT,
        "method": TEXT,
        "method_options": MapOf(PLAIN),
        "model": FILE_NAME,
    },
    optional={
        "decision": Record(
            required={"policy": TEXT, "chosen_on": TEXT},
            optional={
                "pooled": Maybe(NUMBER), "trained_on": Maybe(COUNT), "images": COUNT,
                "classes_with_pooled_threshold": NAMES, "classes_never_chosen": NAMES, "classes_chosen_nowhere": NAMES,
                "classes_with_shrunken_threshold": NAMES, "positives": ListOf(COUNT), "enough_positives": COUNT,
                "expected": Maybe(EXPECTED),
            },
        ),
        "tagspread": TEXT, "network": TEXT, "classes_sha256": TEXT, "run": Maybe(TEXT),
        "chosen_on_images": Maybe(Record(optional={"part": TEXT, "digests": NAMES})),
    },
    rule=_decision,
)  # fmt: skip

MEASURED = Record(
    required={"mAP": Maybe(SHARE)},
    optional={"interval_90": Maybe(PAIR), "images": COUNT, "classes_with_few_positives": COUNT},
)


def _gain(metrics: JsonObject) -> str:
    gain = metrics.get("gain", {"left_out": ""})
    if not {"left_out", "not_measured", "difference"} & gain.keys():
        return "gain does not say what it is"
    if "difference" in gain:
        missing = [f"gain.{name}" for name in ("interval_90", "part", "images") if name not in gain]
        missing += [name for name in ("labeled_only", "network") if name not in metrics]
        return f"{missing[0]} is missing" if missing else ""
    return ""


METRICS = Record(
    optional={
        "selection": TEXT, "network": TEXT, "seconds": NUMBER, "warning": TEXT, "kept": TEXT,
        "stopped_early": TEXT, "timings": MapOf(NUMBER),
        "test": MEASURED, "held_out": MEASURED,
        "labeled_only": Record(required={"mAP": SHARE, "what": TEXT}, optional={"interval_90": PAIR}),
        "gain": Record(
            optional={
                "left_out": TEXT, "not_measured": TEXT, "difference": NUMBER, "interval_90": PAIR, "part": TEXT,
                "images": COUNT,
            }
        ),
    },
    rule=_gain,
)  # fmt: skip

LOG_LINE = Record(
    required={"epoch": COUNT},
    optional={
        **dict.fromkeys(("loss", "img_per_s", "pseudo_positives", "ignored", "best"), FLOAT),
        **{f"{part}_map_{name}": FLOAT for part in ("test", "held_out") for name in ("raw", "ema")},
        "stage": TEXT, "seconds": NUMBER, "flips": COUNT, "best_is": TEXT, "chosen": MapOf(PLAIN),
    },
)  # fmt: skip

CHECKPOINT = Record(
    required={
        "format": COUNT,
        "config": MapOf(PLAIN),
        "data": TEXT,
        "student": Record(
            required={
                "in_stage": YES_OR_NO, "ema_steps": COUNT, "groups": ListOf(ListOf(MapOf(PLAIN))),
                "schedules": ListOf(MapOf(PLAIN)),
            }
        ),
        "history": Record(
            required={
                **dict.fromkeys(("epoch", "step", "read_labeled", "read_unlabeled"), COUNT),
                "label_metrics": MapOf(FLOAT), "log": ListOf(LOG_LINE), "loss_sum": FLOAT,
            }
        ),
    },
    optional={"method_file": TEXT, "job": TEXT, "timings": MapOf(NUMBER)},
)  # fmt: skip


# --- reading ----------------------------------------------------------------------------------------------------------


def parse_json(text: str | bytes) -> Any:
    """Parse JSON; raise ``ValueError``, and nothing else, for text that is not JSON."""
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"line {error.lineno}: {error.msg}") from None
    except UnicodeDecodeError:
        raise ValueError("it is not UTF-8") from None
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except ValueError:  # Python limits the digits of a whole number
        raise ValueError("a number has too many digits") from None


def parse_object(text: str | bytes, source: object, remedy: str = "copy it again") -> JsonObject:
    """Parse a JSON object, without a schema; the message names its source."""
    try:
        found = parse_json(text)
    except ValueError as error:
        raise TagspreadError(f"{source} is damaged ({error}); {remedy}.") from None
    if not isinstance(found, dict):
        raise TagspreadError(f"{source} is damaged: it is not a JSON object; {remedy}.")
    return found


def read_object(file: Path, schema: Schema | None = None) -> JsonObject:
    """Read a JSON object from a file and validate it; a missing file raises ``FileNotFoundError``."""
    refuse_special(file)
    try:
        text = file.read_bytes()
    except FileNotFoundError:
        raise
    except OSError as error:
        raise TagspreadError(f"{file} cannot be read ({error.strerror}); copy it again.") from None
    found = parse_object(text, file)
    if schema is not None:
        validate(found, schema, file)
    return found


def read_log(file: Path) -> list[JsonObject]:
    """Read ``log.jsonl``; a missing file raises ``FileNotFoundError``."""
    refuse_special(file)
    try:
        lines = file.read_bytes().splitlines()
    except FileNotFoundError:
        raise
    except OSError as error:
        raise TagspreadError(f"{file} cannot be read ({error.strerror}); copy it again.") from None
    log = []
    for number, line in enumerate(lines, 1):
        source = f"{file} line {number}"
        log.append(parse_object(line, source))
        validate(log[-1], LOG_LINE, source)
    return log


def validate(value: object, schema: Schema, source: object, remedy: str = "copy the file again") -> None:
    """Raise if a value does not fit a schema.

    Args:
        value: what was read.
        schema: what is expected.
        source: where it was read, the beginning of the message.
        remedy: the end of the message.

    >>> validate({"epoch": 3}, LOG_LINE, "log.jsonl line 4")
    >>> validate({"epoch": "3"}, LOG_LINE, "log.jsonl line 4")
    Traceback (most recent call last):
    tagspread.errors.TagspreadError: log.jsonl line 4 is damaged: epoch is '3', not a whole number of at least 0; copy
    the file again.
    """
    if wrong := next(schema.wrong(value, ""), None):
        raise TagspreadError(f"{source} is damaged: {wrong}; {remedy}.")


def _shown(value: object) -> str:
    """Return a wrong value for a message: short, and on one line."""
    if isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else "a list"
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) > LARGEST_COUNT:
        return "a number with many digits"
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "infinite"
    text = ascii(value) if isinstance(value, str) and not _is_text(value) else repr(value)
    return text if len(text) <= SHOWN else text[:SHOWN] + "..."
