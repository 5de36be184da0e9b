"""``config.json``: how a run was trained, and where its data came from."""

from __future__ import annotations

import dataclasses
import secrets
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path

from tagspread.aliases import JsonObject
from tagspread.errors import TagspreadError
from tagspread.run.folder import RunFolder

FILE = "config.json"


@dataclass(frozen=True)
class DataSource:
    """Where the data of a run came from. A run that was started from Python with its own data knows less of it.

    Attributes:
        images: the folder of images, absolute; None for arrays and lists of files.
        labels: the table of labels, absolute.
        test_labels: the table of labels to test on, absolute.
        cache: folder for decoded images and features.
        test_share: the share of the labeled images that was put aside to test on.
        table_options: how the tables were read, see :func:`tagspread.data.tables.read.read_table`.
        bench: which cell of a benchmark the run is.
    """

    images: str | None = None
    labels: str | None = None
    test_labels: str | None = None
    cache: str | None = None
    test_share: float | None = None
    table_options: JsonObject = field(default_factory=dict)
    bench: JsonObject | None = None

    def to_dict(self) -> JsonObject:
        """Return what is known."""
        return {name: value for name, value in dataclasses.asdict(self).items() if value is not None and value != {}}


@dataclass(frozen=True)
class RunConfig:
    """What ``config.json`` records.

    Attributes:
        version: the tagspread that trained.
        settings: how, see :class:`tagspread.train.config.TrainConfig`.
        data: where the data came from.
        keep_better: whether the labeled-only model becomes the run's if it is better.
        id: a number that no other run has; the run's labels.json has it, too.
    """

    version: str
    settings: JsonObject
    data: DataSource = DataSource()
    keep_better: bool = False
    id: str = field(default_factory=lambda: secrets.token_hex(8), compare=False)

    def write(self, folder: RunFolder) -> None:
        """Write it into a run folder."""
        written = {"tagspread": self.version, "settings": self.settings, "data": self.data.to_dict()}
        folder.write_json(FILE, written | {"keep_better": self.keep_better, "id": self.id})

    @classmethod
    def read(cls, run: str | PathLike[str]) -> RunConfig:
        """Read the one of a run; raise if there is none, or it is damaged."""
        folder = RunFolder(Path(run))
        stored = folder.read_json(FILE)
        settings, data = stored.get("settings"), stored.get("data", {})
        if not isinstance(settings, dict):
            raise TagspreadError(f"{folder.path / FILE} is damaged: it has no settings of a run; copy it anew.")
        try:
            known = {one.name for one in dataclasses.fields(DataSource)}
            source = DataSource(**{name: value for name, value in data.items() if name in known})
            paths = (source.images, source.labels, source.test_labels, source.cache)
            if not all(path is None or isinstance(path, str) for path in paths):
                raise TypeError
            if not isinstance(source.table_options, dict):
                raise TypeError
        except (TypeError, AttributeError):
            raise TagspreadError(
                f"{folder.path / FILE} is damaged: it does not say where the data came from; copy it anew."
            ) from None
        more = {"id": str(stored["id"])} if "id" in stored else {}
        return cls(str(stored["tagspread"]), settings, source, bool(stored.get("keep_better")), **more)

    @classmethod
    def find(cls, run: str | PathLike[str]) -> RunConfig | None:
        """Read the one of a run; return None for a folder that holds a tagger without its run, such as an export."""
        return cls.read(run) if RunFolder(Path(run)).is_run else None
