"""Commands that write something, and what must be true after a fault: no loss, and a second try that works."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from tagspread.files import LOCK, is_temporary
from tests.faults.campaigns.harness import Flaw, command, contents
from tests.faults.campaigns.world import World, copy_of

OLD = b"an old one"
MODEL = ("run/model.safetensors", "run/split.csv", "run/pseudo_labels.csv")


@dataclass(frozen=True)
class Work:
    """A command that writes.

    Attributes:
        name: name for the table of bad cases.
        words: the command, given the world and a folder.
        run: which run is copied into the folder as ``run`` first; none if empty.
        files: what it writes, and writes alike every time.
        old: files that are there before and are replaced.
    """

    name: str
    words: Callable[[World, Path], tuple[object, ...]]
    run: str = ""
    files: tuple[str, ...] = ()
    old: tuple[str, ...] = ()

    def begin(self, world: World, top: Path) -> None:
        """Make the folder as it is before the command."""
        top.mkdir()
        if self.run:
            copy_of(getattr(world, self.run), top / "run")
        for file in self.old:
            (top / file).write_bytes(OLD)


CPU = ("--device", "cpu")
WORKS = (
    Work("train", lambda world, top: world.training(top / "run"), "", MODEL),
    Work("train --overwrite", lambda world, top: world.training(top / "run", "--overwrite"), "other", MODEL),
    Work("train --resume", lambda world, top: ("train", "--resume", top / "run", *CPU), "interrupted", MODEL),
    Work(
        "predict",
        lambda world, top: ("predict", top / "run", world.images, "-o", top / "tags.csv", "--overwrite", *CPU),
        "run",
        ("tags.csv",),
        ("tags.csv",),
    ),
    Work(
        "predict new",
        lambda world, top: ("predict", top / "run", world.images, "-o", top / "tags.jsonl", *CPU),
        "run",
        ("tags.jsonl",),
    ),
    Work(
        "fill",
        lambda world, top: (
            "predict",
            top / "run",
            world.images,
            "--fill",
            world.images / "gaps.csv",
            "-o",
            top / "f.csv",
            "--overwrite",
            *CPU,
        ),
        "run",
        ("f.csv",),
        ("f.csv",),
    ),
    Work(
        "thresholds", lambda world, top: ("thresholds", top / "run", "--labels", world.images / "test.csv", *CPU), "run"
    ),
    Work("report", lambda world, top: ("report", top / "run"), "run"),
    Work("hub", lambda world, top: ("export", top / "run", "--hub", top / "hub"), "run", ("hub/model.safetensors",)),
    Work(
        "pseudo-labels",
        lambda world, top: ("pseudo-labels", top / "run", "--label-studio", top / "tasks.json", "--overwrite"),
        "run",
        ("tasks.json",),
        ("tasks.json",),
    ),
    Work(
        "corrected",
        lambda world, top: (
            "pseudo-labels",
            top / "run",
            "--corrected",
            world.images / "test.csv",
            "-o",
            top / "all.csv",
            "--overwrite",
        ),
        "run",
        ("all.csv",),
        ("all.csv",),
    ),
    Work(
        "embed",
        lambda world, top: (
            "embed",
            world.images / "p00.png",
            "-o",
            top / "f.npz",
            "--backbone",
            "small",
            "--weights",
            "none",
            "--image-size",
            "24",
            "--overwrite",
            *CPU,
        ),
        "",
        ("f.npz",),
        ("f.npz",),
    ),
)


@dataclass
class Aftermath:
    """Checks what a fault has left.

    Attributes:
        world: images and runs.
    """

    world: World
    _new: dict[str, dict[str, str]] = field(default_factory=dict)

    def new(self, work: Work) -> dict[str, str]:
        """Return the files that the command writes when nothing disturbs it."""
        if work.name not in self._new:
            top = self.world.top / "aftermath"
            work.begin(self.world, top)
            result = self.world.harness.process(command(*work.words(self.world, top)), 300)
            if result.code:
                raise RuntimeError(f"{work.name} fails without a fault: {result.said}")
            found = contents(top)
            self._new[work.name] = {name: found[name] for name in work.files}
            shutil.rmtree(top)
        return self._new[work.name]

    def check(self, work: Work, top: Path, inputs: dict[str, str]) -> Flaw | None:
        """Find what was lost, and run the command again: it must work and give the same files."""
        if contents(self.world.images) != inputs:
            return Flaw("lost", "an image or a table was changed")
        new = self.new(work)
        if flaw := self._lost(work, top, new):
            return flaw
        again = self.world.harness.process(command(*work.words(self.world, top)), 60)
        if again.code and work.name == "train" and "--resume" in again.said:
            again = self.world.harness.process(command("train", "--resume", top / "run", *CPU), 60)
        exists = (
            work.name in ("predict new", "hub")
            and again.code == 2
            and ("exists" in again.said or "already holds" in again.said)
        )
        if again.code and not exists:
            return Flaw("stuck", f"a second try ends with {again.code}: {again.said[-600:]}")
        found = contents(top)
        if wrong := [name for name in work.files if found.get(name) != new[name]]:
            return Flaw("lost", f"after a second try, {wrong[0]} is not as without the fault")
        if exists:
            return None
        litter = [path.name for path in top.rglob("*") if is_temporary(path.name) or path.name.endswith(LOCK)]
        return Flaw("stuck", f"{litter[0]} is left") if litter else None

    def _lost(self, work: Work, top: Path, new: dict[str, str]) -> Flaw | None:
        for name in work.old:
            file = top / name
            if not file.exists() or (file.read_bytes() != OLD and contents(top)[name] != new[name]):
                return Flaw("lost", f"{name} is neither the old nor the new one")
        if not work.run or work.run == "interrupted":
            return None
        before = contents(getattr(self.world, work.run))["model.safetensors"]
        found = contents(top)
        models = [found.get(f"run/{folder}model.safetensors") for folder in ("", "previous/")]
        kept = {before, new.get("run/model.safetensors", before)}
        return None if kept & set(models) else Flaw("lost", "neither the old nor the new model is there")
