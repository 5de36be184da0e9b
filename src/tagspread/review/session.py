"""The review of a run: its images, the answers so far, and which images each page shows next.

One server at a time works on a run, so that the session keeps in memory what the store has on disk.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal, NamedTuple, get_args

import numpy as np

from tagspread.aliases import JsonObject
from tagspread.core.binomial import clopper_pearson
from tagspread.data.tables.layouts import TAG_COLUMNS
from tagspread.errors import TagspreadError, check_choice
from tagspread.review.answers import Answer, AnswerStore, Visit, YesNo
from tagspread.review.index import Index
from tagspread.review.queue import default_queue, random_draws

LEASE_SECONDS = 90.0  # a page renews its leases more often
MOST_AT_ONCE = 100  # images of one request
EXAMPLES = 6
CONFIDENCE = 0.9
LONGEST_TAG = 100

Status = Literal["open", "answered", "conflict", "all"]
STATUSES: tuple[Status, ...] = get_args(Status)
Side = Literal["called", "missed"]
SIDES: tuple[Side, ...] = get_args(Side)


class Given(NamedTuple):
    """An answer as a page sends it: about an image, by number."""

    image: int
    tag: str
    answer: YesNo


class Review:
    """The state of a review; its methods may be called from several threads.

    Images have numbers, which are their places in the index, so that no page ever names a path.

    Args:
        run: the run folder.
        index: what was prepared about the run.
        store: the answers.
    """

    def __init__(self, run: Path, index: Index, store: AnswerStore) -> None:
        self.run, self.index, self.store = run, index, store
        self._lock = threading.RLock()
        self._number: dict[str, int] = {}
        for k, digest in enumerate(index.digests):
            if index.unlabeled[k]:
                self._number.setdefault(digest, k)
        self._order, self._strategy, self._first_tags = self._load_queue()
        self.folders = [name.replace("\\", "/").rpartition("/")[0] for name in index.names]
        self._answers: dict[str, dict[str, Answer]] = {}
        for answer in store.answers():
            self._answers.setdefault(answer.digest, {})[answer.tag] = answer
        self._conflicts = {conflict.counts.digest for conflict in store.conflicts()}
        self._visited = np.zeros(len(index), bool)
        self._visited[[self._number[digest] for digest in store.visited() if digest in self._number]] = True
        self.store.release()

    def _load_queue(self) -> tuple[np.ndarray, dict[int, str], dict[int, tuple[str, ...]]]:
        index, run_id = self.index, self.index.run_id
        at = np.flatnonzero(index.unlabeled)
        digests = [index.digests[k] for k in at.tolist()]
        if not (queue := self.store.queue(run_id)):
            self.store.set_draws(run_id, random_draws(digests, run_id))
            draws = self.store.draws(run_id)
            entries = default_queue(digests, index.rows[at], index.scores[at], index.thresholds, index.classes, draws)
            self.store.set_queue(run_id, entries)
            queue = self.store.queue(run_id)
        of_row = {row: k for k, row in zip(at.tolist(), index.rows[at].tolist(), strict=True)}
        known = [(of_row[queued.row], queued) for queued in queue if queued.row in of_row]
        return (
            np.array([k for k, _ in known], np.int64),
            {k: queued.strategy for k, queued in known},
            {k: queued.tags for k, queued in known},
        )

    # --- what a page shows --------------------------------------------------------------------------------------------

    @property
    def tags(self) -> list[str]:
        """The tags of the run, then those that reviewers added."""
        return [*self.index.classes, *self.store.added_tags()]

    def overview(self) -> JsonObject:
        """Return what a page needs to know once."""
        finite = np.isfinite(self.index.thresholds)
        return {
            "run": self.run.resolve().name,
            "id": self.index.run_id,
            "tags": self.tags,
            "scored": len(self.index.classes),
            "thresholds": [
                float(value) if is_finite else None
                for value, is_finite in zip(self.index.thresholds, finite, strict=True)
            ],
            "folders": sorted({self.folders[k] for k in self._order.tolist()}),
            "unreadable": len(self.index.unreadable),
            "progress": self.progress(),
        }

    def progress(self) -> JsonObject:
        """Return how many images are finished, and how many pseudo-labels reviewers confirmed.

        Only the random sample counts for the latter: of the doubtful images, more pseudo-labels are wrong.
        """
        with self._lock:
            done = int(self._visited[self._order].sum())
            drawn = self.store.random_sample(self.index.run_id)
            sample = [self._number[digest] for digest in drawn if digest in self._number]
        confirmed = total = 0
        column = {name: k for k, name in enumerate(self.index.classes)}
        for k in sample:
            for tag, answer in self._answers.get(self.index.digests[k], {}).items():
                if tag in column and answer.answer != "unknown" and self.index.pseudo[k, column[tag]] == 1:
                    total += 1
                    confirmed += answer.answer == "yes"
        found: JsonObject = {
            "done": done,
            "images": len(self._order),
            "conflicts": len(self._conflicts),
            "checked": total,
        }
        if total:
            low, high = clopper_pearson(np.array([confirmed]), np.array([total]), CONFIDENCE)
            found |= {"confirmed": confirmed / total, "low": float(low[0]), "high": float(high[0])}
        return found

    def item(self, k: int) -> JsonObject:
        """Return what a page shows about an image."""
        self._check(k)
        digest = self.index.digests[k]
        with self._lock:
            answers = self._answers.get(digest, {})
            given = {tag: {"answer": one.answer, "who": one.who} for tag, one in answers.items()}
            if digest in self._conflicts:
                for conflict in self.store.conflicts(digest):
                    given[conflict.counts.tag]["other"] = f"{conflict.other.who}: {conflict.other.answer}"
        scores = self.index.scores[k]
        return {
            "image": k,
            "name": self.index.names[k].encode("utf-8", "replace").decode(),
            "scores": [None if np.isnan(score) else round(float(score), 4) for score in scores],
            "ask": list(self._first_tags.get(k, ())),
            "strategy": self._strategy.get(k, "open"),
            "answers": given,
            "visited": bool(self._visited[k]),
            "missing": not self.index.path(k).is_file(),
        }

    def file(self, k: int) -> tuple[Path, str]:
        """Return the file of an image, and its digest."""
        self._check(k)
        return self.index.path(k), self.index.digests[k]

    def _check(self, k: int) -> None:
        if not 0 <= k < len(self.index):
            raise TagspreadError(f"there is no image number {k} in this run; reload the page.")

    def next(
        self,
        page: str,
        count: int,
        *,
        status: Status = "open",
        tag: str | None = None,
        folder: str | None = None,
        keep: Iterable[int] = (),
    ) -> list[JsonObject]:
        """Reserve the next images of the queue for a page.

        Args:
            page: identifier of the page.
            count: number of images.
            status: which images: ``open`` not finished yet, ``answered``, ``conflict``, or ``all``.
            tag: only images that have this tag, by the answers or else by the model.
            folder: only images of this folder.
            keep: images that the page has already.
        """
        check_choice("status", status, STATUSES)
        with self._lock:
            mask = self._of_status(status)
            if tag is not None:
                mask &= self._has_tag(tag)
            if folder is not None:
                mask &= self._below(folder)
            mask[[k for k in keep if 0 <= k < len(mask)]] = False
            order = self._order[mask[self._order]]
            return [self.item(k) for k in self._lease(page, order, count)]

    def grid(self, page: str, count: int, tag: str, side: Side, *, folder: str | None = None) -> list[JsonObject]:
        """Reserve images without an answer about a tag for the grid of a page.

        Args:
            page: identifier of the page.
            count: number of images.
            tag: the tag.
            side: ``called``: those that the model gives the tag, the surest first; ``missed``: the others, the most
                probable first.
            folder: only images of this folder.
        """
        check_choice("side", side, SIDES)
        with self._lock:
            if tag not in self.index.classes:
                raise TagspreadError(f"the model does not know the tag {tag!r}, so it cannot sort images by it.")
            column = self.index.classes.index(tag)
            scores, threshold = self.index.scores[:, column], self.index.thresholds[column]
            mask = self.index.unlabeled & ((scores >= threshold) == (side == "called"))
            answered = (digest for digest, answers in self._answers.items() if tag in answers)
            mask[[self._number[digest] for digest in answered if digest in self._number]] = False
            if folder is not None:
                mask &= self._below(folder)
            rows = self._order[mask[self._order]]
            ordered = rows[np.argsort(-scores[rows], kind="stable")]
            return [self.item(k) for k in self._lease(page, ordered, count)]

    def examples(self, tag: str) -> list[int]:
        """Return labeled images of a tag, then images that a reviewer gave it."""
        found: list[int] = []
        if tag in self.index.classes:
            column = self.index.classes.index(tag)
            found = np.flatnonzero(~self.index.unlabeled & (self.index.y[:, column] == 1))[:EXAMPLES].tolist()
        with self._lock:
            for digest, answers in self._answers.items():
                if len(found) >= EXAMPLES:
                    break
                if tag in answers and answers[tag].answer == "yes" and digest in self._number:
                    found.append(self._number[digest])
        return found

    def _of_status(self, status: Status) -> np.ndarray:
        if status == "open":
            return ~self._visited
        if status == "all":
            return np.ones(len(self.index), bool)
        mask = self._visited.copy() if status == "answered" else np.zeros(len(self.index), bool)
        chosen = self._conflicts if status == "conflict" else self._answers.keys()
        mask[[self._number[digest] for digest in chosen if digest in self._number]] = True
        return mask

    def _below(self, folder: str) -> np.ndarray:
        return np.array([one == folder or one.startswith(f"{folder}/") for one in self.folders])

    def _has_tag(self, tag: str) -> np.ndarray:
        mask = np.zeros(len(self.index), bool)
        if tag in self.index.classes:
            column = self.index.classes.index(tag)
            mask = self.index.scores[:, column] >= self.index.thresholds[column]
        for digest, answers in self._answers.items():
            if tag in answers and digest in self._number:
                mask[self._number[digest]] = answers[tag].answer == "yes"
        return mask

    # --- leases -------------------------------------------------------------------------------------------------------

    def _lease(self, page: str, order: np.ndarray, count: int) -> list[int]:
        count = max(0, min(count, MOST_AT_ONCE))
        taken = self.store.leased_by_others(page)
        free = (k for k in order.tolist() if self.index.digests[k] not in taken)
        wanted = [k for k, _ in zip(free, range(count), strict=False)]
        held = set(self.store.lease([self.index.digests[k] for k in wanted], page, LEASE_SECONDS))
        return [k for k in wanted if self.index.digests[k] in held]

    def renew(self, page: str, images: Sequence[int]) -> None:
        """Keep images reserved for a page; those that another page holds by now stay there."""
        for k in images[:MOST_AT_ONCE]:
            self._check(k)
        self.store.lease([self.index.digests[k] for k in images[:MOST_AT_ONCE]], page, LEASE_SECONDS)

    def release(self, page: str) -> None:
        """Give back the images that a page reserved."""
        self.store.release(page)

    # --- answers ------------------------------------------------------------------------------------------------------

    def record(
        self,
        who: str,
        batch: str,
        given: Sequence[Given],
        visited: Sequence[int] = (),
        *,
        seconds: float = 0.0,
        grid: bool = False,
    ) -> bool:
        """Keep the answers of one step; they are on the disk when this returns.

        Args:
            who: the person.
            batch: random identifier of the step.
            given: the answers.
            visited: the images that the person has finished or skipped.
            seconds: how long the step took.
            grid: whether the answers were given in the grid.

        Returns:
            False if this step was recorded before.
        """
        tags, now = set(self.tags), time.time()
        for k in [*(one.image for one in given), *visited]:
            self._check(k)
        for one in given:
            if one.tag not in tags:
                raise TagspreadError(f"there is no tag {one.tag!r}; add it first.")
        each = seconds / max(1, len(given))
        answers = [
            Answer(
                self.index.digests[one.image],
                self.index.names[one.image],
                one.tag,
                one.answer,
                who,
                now,
                each,
                "grid" if grid else self._strategy.get(one.image, "open"),
            )
            for one in given
        ]
        visits = [Visit(self.index.digests[k], who, now, seconds) for k in visited]
        if not answers and not visits:
            return False
        with self._lock:
            is_new = self.store.record(answers, batch, who, visits)
            if is_new:
                self._reload([one.image for one in given])
                self._visited[list(visited)] = True
            return is_new

    def undo(self, who: str, batch: str | None = None) -> JsonObject:
        """Undo a person's last step, or the given one; return its images and what was undone."""
        with self._lock:
            step = self.store.undo(who, batch)
            if step is None:
                return {"images": [], "answers": []}
            digests = dict.fromkeys([*(one.digest for one in step.visits), *(one.digest for one in step.answers)])
            images = [self._number[digest] for digest in digests if digest in self._number]
            self._reload(images)
            visited = self.store.visited()
            for k in images:
                self._visited[k] = self.index.digests[k] in visited
            return {"images": images, "answers": [{"tag": one.tag, "answer": one.answer} for one in step.answers]}

    def _reload(self, images: Iterable[int]) -> None:
        """Read the answers of some images again."""
        for k in dict.fromkeys(images):
            digest = self.index.digests[k]
            answers = {answer.tag: answer for answer in self.store.answers(digest)}
            if answers:
                self._answers[digest] = answers
            else:
                self._answers.pop(digest, None)
            if self.store.conflicts(digest):
                self._conflicts.add(digest)
            else:
                self._conflicts.discard(digest)

    def add_tag(self, name: str, who: str) -> list[str]:
        """Add a tag; return all tags."""
        tag = " ".join(name.split())
        if not tag or len(tag) > LONGEST_TAG or not tag.isprintable():
            raise TagspreadError(f"a tag needs 1 to {LONGEST_TAG} characters, all of them visible.")
        if "|" in tag:
            raise TagspreadError("a tag cannot contain '|', which separates tags in a table.")
        if tag.lower() in TAG_COLUMNS:
            raise TagspreadError(f"{tag!r} is the name of a column in label tables; choose another name.")
        existing = {one.casefold(): one for one in self.tags}
        if tag.casefold() in existing:
            raise TagspreadError(f"there is a tag {existing[tag.casefold()]!r} already.")
        self.store.add_tag(tag, who)
        return self.tags
