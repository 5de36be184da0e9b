"""Large and deep input: what is small on the disk and large in memory, and what takes quadratic time."""

from __future__ import annotations

import json
import os
import random
import struct
import zlib
from collections.abc import Callable
from pathlib import Path

from tests.faults.campaigns.harness import Case, Flaw, Result, command, contents
from tests.faults.campaigns.work import CPU
from tests.faults.campaigns.world import World

SHARE = 100  # the quick form is this many times smaller
LONG = 120  # seconds for work on 200,000 images, which takes that long


def black_png(side: int, channels: int = 3) -> bytes:
    """Return a PNG of one color: kilobytes for gigabytes."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    packer = zlib.compressobj(9)
    data = b"".join(packer.compress(bytes(1 + channels * side)) for _ in range(side)) + packer.flush()
    header = struct.pack(">IIBBBBB", side, side, 8, {1: 0, 3: 2, 4: 6}[channels], 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", data) + chunk(b"IEND", b"")


class Large:
    """Commands on large input; each kind in turn, in sizes around the largest."""

    name = "large input"
    count = 24
    quick = 12
    trains = False

    def __init__(self, world: World, number: int) -> None:
        del number
        self._world, self._next = world, 0
        self.small = False

    def case(self, rng: random.Random, folder: Path) -> Case:
        """Return one case."""
        kinds: tuple[Callable[[random.Random, Path], Case], ...] = (
            self._many_tags,
            self._many_columns,
            self._parquet,
            self._missing_names,
            self._large_images,
            self._deep,
            self._digits,
            self._links,
            self._many_images,
            self._long_lines,
            self._one_image,
            self._near_tags,
        )
        return rng.choice(kinds)(rng, folder)

    def _size(self, rng: random.Random, most: int) -> int:
        return max(10, round(most * rng.choice((1, 1, 0.6, 0.3))) // (SHARE if self.small else 1))

    def _check(self, file: Path, words: str, images: Path | None = None) -> Case:
        return Case(words, command("check", images or self._world.images, "--labels", file), codes=(1, 2))

    def _many_tags(self, rng: random.Random, folder: Path) -> Case:
        count, file = self._size(rng, 60_000), folder / "labels.csv"
        file.write_text("image,tags\n" + "".join(f"i{k}.png,tag number {k}\n" for k in range(count)))
        return self._check(file, f"{count} rows with {count} tags")

    def _near_tags(self, rng: random.Random, folder: Path) -> Case:
        """Tags that differ by one letter, in rows with many tags."""
        count, file = self._size(rng, 20_000), folder / "labels.csv"
        names = [
            f"{rng.choice('abcdefgh')}{k:06}".translate(str.maketrans("0123456789", "abcdefghij")) for k in range(count)
        ]
        file.write_text("image,tags\n" + "".join(f"p{k % 28:02}.png,{'|'.join(names[k::40])}\n" for k in range(40)))
        return self._check(file, f"{count} tags with similar names")

    def _many_columns(self, rng: random.Random, folder: Path) -> Case:
        count, kind = self._size(rng, 100_000), rng.choice(("csv", "jsonl", "tsv"))
        file = folder / f"labels.{kind}"
        if kind == "jsonl":
            file.write_text(
                "".join(
                    json.dumps({"image": f"p{k:02}.png"} | {f"c{i}": i % 2 for i in range(count)}) + "\n"
                    for k in range(3)
                )
            )
        else:
            joint = {"csv": ",", "tsv": "\t"}[kind]
            lines = [
                ["image", *(f"c{i}" for i in range(count))],
                *([f"p{k:02}.png", *("01"[i % 2] for i in range(count))] for k in range(3)),
            ]
            file.write_text("\n".join(map(joint.join, lines)))
        return self._check(file, f"{count} columns of {kind}")

    def _parquet(self, rng: random.Random, folder: Path) -> Case:
        import numpy as np
        import pyarrow as pa  # type: ignore[import-untyped]
        from pyarrow import parquet

        count, file = self._size(rng, 20_000_000), folder / "labels.parquet"
        with parquet.ParquetWriter(
            file, pa.schema([("image", pa.dictionary(pa.int32(), pa.string())), ("sea", pa.int8())]), compression="zstd"
        ) as writer:
            left = count
            while left > 0:
                rows = min(left, 1_000_000)
                indices = pa.array(np.zeros(rows, np.int32))
                images = pa.DictionaryArray.from_arrays(indices, pa.array(["p00.png"]))
                writer.write_table(
                    pa.table({"image": images, "sea": pa.array(np.ones(rows, np.int8))}, schema=writer.schema)
                )
                left -= rows
        return self._check(file, f"{count} rows of Parquet in {file.stat().st_size} bytes")

    def _missing_names(self, rng: random.Random, folder: Path) -> Case:
        count, file = self._size(rng, 300_000), folder / "labels.csv"
        file.write_text("image,tags\n" + "".join(f"missing{k}.png,{'ab'[k % 2]}\n" for k in range(count)))
        return self._check(file, f"{count} missing images")

    def _large_images(self, rng: random.Random, folder: Path) -> Case:
        side, channels = self._size(rng, 13_300), rng.choice((1, 3, 4))
        images = folder / "images"
        images.mkdir()
        data = black_png(side, channels)
        for k in range(2):
            (images / f"{k}.png").write_bytes(data)
        out = folder / "tags.csv"
        job = command("predict", self._world.run, images, "-o", out, *CPU)
        return Case(f"two PNG of {side} x {side} x {channels} in {len(data)} bytes", job, seconds=20)

    def _deep(self, rng: random.Random, folder: Path) -> Case:
        depth = self._size(rng, 1_000_000)
        kind, left, right = rng.choice(("json", "jsonl")), *rng.choice((("[", "]"), ('{"a":', "}")))
        file = folder / f"labels.{kind}"
        value = left * depth + "1" + right * depth
        file.write_text(f'{{"image": "p00.png", "tags": {value}}}\n' if kind == "jsonl" else value)
        return self._check(file, f"JSON of depth {depth}")

    def _digits(self, rng: random.Random, folder: Path) -> Case:
        number, kind = rng.choice(("", "-", "1e")) + "9" * self._size(rng, 5_000), rng.choice(("csv", "json", "jsonl"))
        file = folder / f"labels.{kind}"
        lines = {
            "csv": f"image,sea\np00.png,{number}\n",
            "jsonl": f'{{"image": "p00.png", "sea": {number}}}\n',
            "json": f'[{{"id": {number}, "image": "p00.png", "tags": {number}}}]',
        }
        file.write_text(lines[kind])
        return self._check(file, f"a number of {len(number)} digits in {kind}")

    def _links(self, rng: random.Random, folder: Path) -> Case:
        """Links that loop, folders within folders, links to nowhere, pipes and sockets among the images."""
        images, here = folder / "images", folder / "images"
        images.mkdir()
        for _ in range(self._size(rng, 200)):
            here = here / "d"
            here.mkdir()
        for name, target in (
            ("loop", "loop"),
            ("up", ".."),
            ("a", "b"),
            ("b", "a"),
            ("nowhere.png", "/nonexistent"),
            ("self.png", "self.png"),
            ("here", "."),
            ("device.png", "/dev/zero"),
        ):
            (images / name).symlink_to(target)
        os.mkfifo(images / "pipe.png")
        (images / "folder.png").mkdir()
        (images / "p00.png").write_bytes((self._world.images / "p00.png").read_bytes())
        labels = folder / "labels.csv"
        labels.write_text("image,tags\np00.png,a\nself.png,b\nloop/p.png,a\npipe.png,b\n")
        words = rng.choice(
            (
                ("check", images, "--labels", labels),
                ("predict", self._world.run, images, "-o", folder / "t.csv", *CPU),
                (
                    "train",
                    images,
                    "--labels",
                    labels,
                    "--out",
                    folder / "run",
                    "--backbone",
                    "small",
                    "--weights",
                    "none",
                ),
                ("predict", self._world.run, images / "loop", *CPU),
                ("check", images / "a", "--labels", labels),
                ("check", images, "--labels", images / "self.png"),
                ("evaluate", self._world.run, "--labels", labels, "--images", images),
            )
        )
        return Case(f"links that loop: {words[0]}", command(*words), codes=(1, 2))

    def _many_images(self, rng: random.Random, folder: Path) -> Case:
        """Many files, few of them images: memory must not grow with their number."""
        count = self._size(rng, 200_000)
        images = folder / "images"
        images.mkdir()
        good, bad = (self._world.images / "p00.png").read_bytes(), b"no image"
        for start in range(0, count, 1000):
            part = images / f"{start // 1000:03}"
            part.mkdir()
            (part / f"{start}.png").write_bytes(good)
            (part / f"{start + 1}.png").write_bytes(bad)
            for k in range(start + 2, min(start + 1000, count)):  # file systems limit the links to one file
                os.link(part / f"{start + (k % 10 > 0)}.png", part / f"{k}.png")
        out = folder / "tags.csv"

        def check(result: Result) -> Flaw | None:
            if result.code or sum(1 for _ in out.open()) != count + 1:
                return Flaw("lost", "not all images are in the table")
            return None

        return Case(
            f"predict on {count} images",
            command("predict", self._world.run, images, "-o", out, *CPU),
            check,
            seconds=LONG,
        )

    def _long_lines(self, rng: random.Random, folder: Path) -> Case:
        length, file = self._size(rng, 20_000_000), folder / "labels.csv"
        text = rng.choice(("a", "|", '"', ",", "a|", "\u00e9", "\n", " "))
        file.write_text("image,tags\np00.png," + text * (length // len(text)) + "\n", encoding="utf-8")
        return self._check(file, f"a line of {length} characters {text!r}")

    def _one_image(self, rng: random.Random, folder: Path) -> Case:
        """Many rows of one image, which are merged."""
        count, file = self._size(rng, 300_000), folder / "labels.csv"
        file.write_text("image,tags\n" + "".join(f"p00.png,t{k % 500}\n" for k in range(count)))
        before = contents(self._world.images)

        def check(result: Result) -> Flaw | None:
            del result
            return Flaw("lost", "an image was changed") if contents(self._world.images) != before else None

        job = command("check", self._world.images, "--labels", file)
        return Case(f"{count} rows of one image", job, check, codes=(1, 2))
