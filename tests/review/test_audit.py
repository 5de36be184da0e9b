"""The audit of a run, on a run folder and answers written by hand: the truth of every image is known."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
from typer.testing import CliRunner

from tagspread.cli import app
from tagspread.data.tables.read import PSEUDO_LABEL_COLUMNS
from tagspread.errors import TagspreadError
from tagspread.review.answers import Answer, AnswerStore, Visit
from tagspread.review.audit import audit_in_words, audit_run
from tagspread.run.config import DataSource, RunConfig
from tagspread.run.folder import RunFolder
from tagspread.run.pseudo_labels import FILE, pseudo_label_rows
from tagspread.run.split import Part, Split, write_split
from tagspread.train.config import make_config

CLASSES = ("cat", "dog", "sun")
LABELED, UNLABELED = 120, 1000


@pytest.fixture
def reviewed(tmp_path):
    """A run whose labels have too many cats; 200 of its unlabeled images are drawn and answered truly, but for sun."""
    rng = np.random.default_rng(0)
    y = (rng.random((LABELED + UNLABELED, 3)) < [0.05, 0.3, 0.4]).astype(np.int8)
    y[:30, 0] = 1
    parts = np.repeat([Part.LABELED, Part.UNLABELED], [LABELED, UNLABELED]).astype(np.int8)
    names = [f"i{k:04}.jpg" for k in range(len(y))]
    digests = np.array([f"{k:016x}" for k in range(len(y))], "S16")
    folder = RunFolder(tmp_path / "run")
    folder.path.mkdir()
    config = RunConfig("0", make_config("default").to_dict(), DataSource(images=str(tmp_path)))
    config.write(folder)
    write_split(folder, Split(names, parts, digests, CLASSES, y))
    wrong = rng.random((UNLABELED, 3)) < 0.1
    targets = np.where(wrong, 1 - y[LABELED:], y[LABELED:]).astype(float)
    targets[rng.random(targets.shape) < 0.05] = -1
    rows = pseudo_label_rows(names[LABELED:], CLASSES, targets, rng.normal(size=targets.shape), np.zeros(targets.shape))
    folder.write_csv(FILE, PSEUDO_LABEL_COLUMNS, rows)
    draws = LABELED + rng.permutation(UNLABELED)
    store = AnswerStore.open(folder.path, create=True)
    store.set_draws(config.id, [digests[row].decode() for row in draws])
    world = SimpleNamespace(
        path=folder.path, y=y, draws=draws, digests=digests, targets=targets, store=store, names=names
    )
    answer(world, draws[:200], skip=("sun",))
    yield world
    store.close()


def answer(world, rows, *, source="random", skip=(), visit=True):
    for row in rows:
        digest = world.digests[row].decode()
        given = [
            Answer(digest, world.names[row], tag, "yes" if world.y[row, k] else "no", "ann", 1.0, 1.0, source)
            for k, tag in enumerate(CLASSES)
            if tag not in skip
        ]
        world.store.record(given, f"{source}{row}", "ann", [Visit(digest, "ann", 1.0, 1.0)] if visit else [])


def test_frequencies_and_quality_are_those_of_the_sample(reviewed):
    audit = audit_run(reviewed.path)
    sample = reviewed.draws[:200]
    truth, targets = reviewed.y[sample], reviewed.targets[sample - LABELED]
    assert (audit.sample, audit.unlabeled) == (200, UNLABELED)
    for k in (0, 1):
        tag = audit.tags[k]
        assert (tag.frequency.unlabeled.part, tag.frequency.unlabeled.of) == (truth[:, k].sum(), 200)
        assert tag.frequency.labeled.part == reviewed.y[:LABELED, k].sum()
        assert tag.pseudo_labels is not None
        right = ((targets[:, k] == 1) & (truth[:, k] == 1)).sum()
        assert (tag.pseudo_labels.precision.part, tag.pseudo_labels.precision.of) == (right, (targets[:, k] == 1).sum())
        assert (tag.pseudo_labels.recall.part, tag.pseudo_labels.recall.of) == (right, truth[:, k].sum())
    assert audit.tags[2].frequency.unlabeled.of == 0
    assert audit.tags[2].unknown == 200


def test_only_the_tag_that_was_selected_contradicts_the_sample(reviewed):
    audit = audit_run(reviewed.path)
    assert [tag.frequency.contradicts for tag in audit.tags] == [True, False, False]
    share = reviewed.y[:LABELED, 0].mean()
    assert audit.warnings()[0].startswith(f"cat: {100 * share:.0f} % among your labels, ")
    assert "in the unlabeled images" in audit.warnings()[0]
    assert "no known answer for sun" in audit.warnings()[1]
    assert "200 images drawn at random from 1,000 unlabeled images" in audit_in_words(audit)[0]


def test_priors_are_those_of_the_images_that_are_left(reviewed):
    left = reviewed.y[reviewed.draws[200:]].mean(0)
    priors = audit_run(reviewed.path).priors
    assert set(priors) == {"cat", "dog"}  # nobody answered sun: it keeps its counts
    assert abs(priors["cat"] - left[0]) < 0.05 < 0.2 < reviewed.y[:LABELED, 0].mean() - left[0]
    assert priors["dog"] == pytest.approx(left[1], abs=0.06)


def test_answers_that_were_asked_for_on_purpose_do_not_bias_the_audit(reviewed):
    before = audit_run(reviewed.path)
    rest = reviewed.draws[200:]
    cats = rest[reviewed.y[rest, 0] == 1]
    # asked because they are cats; among them are later draws, which must not count before those in between are done
    answer(reviewed, cats, source="rare")
    after = audit_run(reviewed.path)
    assert after.sample - before.sample <= 2
    assert (
        after.tags[0].frequency.unlabeled.part - before.tags[0].frequency.unlabeled.part == after.sample - before.sample
    )
    found = len(cats) / 1000  # these cats are no longer among the images that are left
    assert after.priors["cat"] == pytest.approx(before.priors["cat"] - found, abs=0.02)
    # once the draws between them are answered, cats asked for earlier count as the draws they are
    answer(reviewed, [row for row in reviewed.draws[200:300] if row not in cats])
    assert audit_run(reviewed.path).tags[0].frequency.unlabeled.part == reviewed.y[reviewed.draws[:300], 0].sum()


def test_the_command_prints_a_table_and_json(reviewed):
    result = CliRunner().invoke(app, ["audit", str(reviewed.path)])
    assert result.exit_code == 0
    assert "warning: cat: " in result.output
    line = next(line for line in result.output.splitlines() if line.lstrip().startswith("dog"))
    assert f"({100 * audit_run(reviewed.path).tags[1].frequency.unlabeled.low:.0f} to " in line
    facts = json.loads(CliRunner().invoke(app, ["audit", str(reviewed.path), "--json"]).output)
    assert facts["sample"] == 200
    assert facts["tags"][0]["contradicts"] is True
    assert facts["tags"][2]["unlabeled"] is None


def test_a_run_without_random_answers_says_what_to_do(reviewed, tmp_path):
    reviewed.store.undo("ann", f"random{reviewed.draws[0]}")  # the first draw is open again: no sample
    with pytest.raises(TagspreadError, match="nothing to audit; review some: tagspread review"):
        audit_run(reviewed.path)
    with pytest.raises(TagspreadError, match=r"config\.json"):
        audit_run(tmp_path)


def test_a_run_without_pseudo_labels_is_audited_without_them(reviewed):
    (reviewed.path / FILE).unlink()
    assert {tag.pseudo_labels for tag in audit_run(reviewed.path).tags} == {None}
