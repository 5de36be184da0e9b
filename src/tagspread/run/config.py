"""``config.json``: the settings of a run and the sources of its images and labels."""

from __future__ import annotations

import dataclasses
import secrets
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path

from tagspread.aliases import JsonObject
from tagspread.run import schema
from tagspread.run.folder import RunFolder

FILE = "config.json"
# which model a run predicts with: the labeled-only one if it is clearly better, or always that of the main stage
KEEP = ("better", "last")


@dataclass(frozen=True)
class DataSource:
    """Sources of a run's data. For a run that was started from Python with arrays, most are None.

    Attributes:
        images: absolute path of the folder of images; None for arrays and lists of files.
        labels: absolute path of the label table.
        test_labels: absolute path of the label table of the test set.
        cache: folder for decoded images and features.
        answers: absolute path of the reviewed run whose answers were added to the labels.
        test_share: share of the labeled images that was set aside for testing.
        compare: absolute path of the earlier run whose test images were set aside again, to compare with it.
        table_options: options for reading the tables, see :func:`tagspread.data.tables.read.read_table`.
        bench: the cell of a benchmark that the run belongs to.
    """

    images: str | None = None
    labels: str | None = None
    test_labels: str | None = None
    cache: str | None = None
    test_share: float | None = None
    answers: str | None = None
    compare: str | None = None
    table_options: JsonObject = field(default_factory=dict)
    bench: JsonObject | None = None

    def to_dict(self) -> JsonObject:
        """Return the values that are set, for JSON."""
        return {name: value for name, value in dataclasses.asdict(self).items() if value is not None and value != {}}


@dataclass(frozen=True)
class RunConfig:
    """The contents of ``config.json``.

    Attributes:
        version: version of tagspread that trained the run.
        settings: the settings, see :class:`tagspread.train.config.TrainConfig`.
        data: sources of the data.
        keep: the model that the run predicts with, one of ``KEEP``.
        plan: how the settings were chosen for a time budget or a quality, see :class:`tagspread.train.plan.Plan`.
        id: random identifier of the run, which its ``labels.json`` repeats.
    """

    version: str
    settings: JsonObject
    data: DataSource = DataSource()
    keep: str = "last"
    plan: JsonObject | None = None
    id: str = field(default_factory=lambda: secrets.token_hex(8), compare=False)

    def write(self, folder: RunFolder) -> None:
        """Write ``config.json`` into a run folder."""
        written = {"tagspread": self.version, "settings": self.settings, "data": self.data.to_dict()}
        plan = {} if self.plan is None else {"plan": self.plan}
        folder.write_json(FILE, written | plan | {"keep": self.keep, "id": self.id})

    @classmethod
    def read(cls, run: str | PathLike[str]) -> RunConfig:
        """Read the ``config.json`` of a run; raise if it is missing or damaged."""
        stored = RunFolder(Path(run)).read_json(FILE, schema.CONFIG)
        names = {field.name for field in dataclasses.fields(DataSource)}
        source = DataSource(**{name: value for name, value in stored.get("data", {}).items() if name in names})
        run_id = {"id": stored["id"]} if "id" in stored else {}
        keep = stored.get("keep", "better" if stored.get("keep_better") else "last")  # keep_better: of earlier versions
        return cls(stored["tagspread"], stored["settings"], source, keep, stored.get("plan"), **run_id)

    @classmethod
    def find(cls, run: str | PathLike[str]) -> RunConfig | None:
        """Read the ``config.json`` of a run; return None for a folder without a run, such as an exported tagger."""
        return cls.read(run) if RunFolder(Path(run)).is_run else None
