"""Label tables: damaged bytes, damaged values, and tables that hypothesis makes up, in every format that is read."""

from __future__ import annotations

import csv
import io
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

from tests.faults.campaigns.harness import Case, Flaw, Result, command, contents
from tests.faults.campaigns.mutate import ODD, damaged, json_bytes, wrong_value
from tests.faults.campaigns.world import World

NAMES = [f"p{i:02}.png" for i in range(8)]
TAGS = ["sea", "sand|sea", "", "dog", "sky", "dog|sky", "sea", "sand"]
MADE_UP = 200  # tables made by hypothesis; drawn from in turn


def _text(rows: list[list[str]], delimiter: str = ",") -> bytes:
    file = io.StringIO()
    csv.writer(file, delimiter=delimiter, lineterminator="\n").writerows(rows)
    return file.getvalue().encode("utf-8", "surrogatepass")


LONG = [["image", "tags"], *map(list, zip(NAMES, TAGS, strict=True))]
WIDE = [["image", "sea", "dog"], *([name, str(i % 2), ("", "1", "0")[i % 3]] for i, name in enumerate(NAMES))]
EXPORT = [
    ["annotation_id", "annotator", "created_at", "id", "image", "lead_time", "tags", "updated_at"],
    *(
        [
            str(i),
            "1",
            "x",
            str(i),
            f"/data/upload/1/0123abcd-{name}",
            "2.5",
            json.dumps({"choices": ["sea", "sky"]}),
            "x",
        ]
        for i, name in enumerate(NAMES)
    ),
]
LINES: list[Any] = [{"file_name": name, "tags": tags.split("|")} for name, tags in zip(NAMES, TAGS, strict=True)]
TASKS: list[Any] = [
    {
        "id": i,
        "data": {"image": f"/data/local-files/?d={name}"},
        "annotations": [{"result": [{"from_name": "tags", "type": "choices", "value": {"choices": ["sea"]}}]}],
    }
    for i, name in enumerate(NAMES)
]
TASKS_MIN: list[Any] = [{"id": i, "image": name, "tags": {"choices": ["sea", "dog"]}} for i, name in enumerate(NAMES)]


def parquet_bytes(frame: Any) -> bytes:
    """Return a data frame as a Parquet file."""
    file = io.BytesIO()
    frame.to_parquet(file)
    return file.getvalue()


def _parquet(rng: random.Random) -> bytes:
    """Return a Parquet file with columns of odd types."""
    import pandas as pd

    columns: dict[str, Any] = {"image": list(NAMES), "tags": [tags.split("|") for tags in TAGS]}
    if rng.random() < 0.5:
        columns = {"image": list(NAMES), "sea": [1, 0] * 4, "dog": [True, False] * 4}
    for _ in range(rng.choice((0, 1, 2))):
        name = rng.choice((*columns, "more", "", "tags"))
        columns[name] = rng.choice(
            (
                [b"\xff"] * 8,
                [1.5] * 8,
                [{"a": 1}] * 8,
                [[["x"]]] * 8,
                pd.date_range("2020", periods=8),
                [None] * 8,
                pd.Categorical(["a", "b"] * 4),
                [2**62] * 8,
                [float("inf")] * 8,
                ["x" * 10_000] * 8,
                [[]] * 8,
                pd.array([1, None] * 4, "Int8"),
                pd.array([True, None] * 4, "boolean"),
                [complex(1).real] * 8,
                pd.timedelta_range("1s", periods=8),
                pd.array(["a", None] * 4, "string"),
            )
        )
    return parquet_bytes(pd.DataFrame(columns))


def _json_lines(rng: random.Random) -> bytes:
    value, _ = wrong_value(LINES, rng)
    return b"\n".join(map(json_bytes, value if isinstance(value, list) else [value]))


FORMATS: tuple[tuple[str, Callable[[random.Random], bytes]], ...] = (
    ("long.csv", lambda rng: _text(LONG, rng.choice(",;"))),
    ("wide.csv", lambda rng: _text(WIDE)),
    ("long.tsv", lambda rng: _text(LONG, "\t")),
    ("wide.txt", lambda rng: _text(WIDE, "\t")),
    ("export.csv", lambda rng: _text(EXPORT)),
    ("table.parquet", _parquet),
    ("lines.jsonl", lambda rng: b"\n".join(map(json_bytes, LINES))),
    ("values.jsonl", _json_lines),
    ("tasks.json", lambda rng: json_bytes(TASKS)),
    ("values.json", lambda rng: json_bytes(wrong_value(rng.choice((TASKS, TASKS_MIN)), rng)[0])),
)
WHOLE = ("values.jsonl", "values.json", "table.parquet")  # damaged already: their bytes are left alone half of the time
OPTIONS = (
    (),
    (),
    (),
    ("--delimiter", ""),
    ("--delimiter", ";"),
    ("--ignore", "all"),
    ("--tags-column", "tags"),
    ("--image-column", "image"),
    ("--allow-outside",),
    ("--json",),
)


def made_up(number: int, count: int) -> list[bytes]:
    """Return tables that hypothesis makes up: names, tags and cells of any characters."""
    word = st.one_of(
        st.text(max_size=12), st.sampled_from([str(odd) for odd in ODD if len(str(odd)) < 100] + NAMES + ["1", "0", ""])
    )
    tables = st.lists(st.lists(word, min_size=1, max_size=6), min_size=1, max_size=12)
    made: list[bytes] = []

    @seed(number)
    @settings(max_examples=count, database=None, deadline=None, suppress_health_check=list(HealthCheck))
    @given(
        rows=tables,
        header=st.sampled_from([["image", "tags"], ["image", "a", "b"], []]),
        delimiter=st.sampled_from(",;\t"),
    )
    def make(rows: list[list[str]], header: list[str], delimiter: str) -> None:
        made.append(_text([header, *rows] if header else rows, delimiter))

    make()
    return made


class Tables:
    """``check`` on damaged label tables; every fifth case predicts, fills or trains instead."""

    name = "label tables"
    count = 2100
    quick = 24
    trains = False

    def __init__(self, world: World, number: int) -> None:
        self._world, self._seed = world, number
        self._made: list[bytes] = []

    def case(self, rng: random.Random, folder: Path) -> Case:
        """Return one case."""
        if rng.random() < 0.15:
            self._made = self._made or made_up(self._seed, MADE_UP)
            name, data, words = rng.choice(("made_up.csv", "made_up.tsv")), rng.choice(self._made), "made up"
            if rng.random() < 0.5:
                data, words = damaged(data, rng)
        else:
            name, make = rng.choice(FORMATS)
            data, words = make(rng), "values"
            if name not in WHOLE or rng.random() < 0.5:
                data, words = damaged(data, rng)
        file = folder / name
        file.write_bytes(data)
        images = self._world.images
        before = contents(images)
        kind = rng.random()
        codes: tuple[int, ...] = (2,)
        if kind < 0.8:
            options = rng.choice(OPTIONS)
            job, codes = command("check", images, "--labels", file, *options), (1, 2)
        elif kind < 0.9:
            out = folder / f"filled{rng.choice(('.csv', '.parquet'))}"
            job = command("predict", self._world.run, images, "--fill", file, "-o", out, "--device", "cpu")
        elif kind < 0.95:
            job, codes = (
                command("evaluate", self._world.run, "--labels", file, "--images", images, "--device", "cpu"),
                (2,),
            )
        else:
            job = command("predict", self._world.run, file, "-o", folder / "tags.csv", "--device", "cpu")

        def check(result: Result) -> Flaw | None:
            if contents(images) != before or file.read_bytes() != data:
                return Flaw("lost", "an input was changed")
            return None

        return Case(f"{name}: {words}", job, check, codes=codes)
