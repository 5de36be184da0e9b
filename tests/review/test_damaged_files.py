"""Damaged and foreign files in ``RUN/review``: answers are refused with one message, kept arrays are made again."""

import json
import sqlite3

import numpy as np
import pytest

from tagspread import TagspreadError
from tagspread.review.answers import Answer, AnswerStore, Visit, answers_file
from tagspread.review.index import FILE, FOLDER, read_index


@pytest.fixture
def answered(run):
    with AnswerStore.open(run, create=True) as store:
        store.record([Answer("d1", "a.png", "cat", "yes", "ann", 1.0, 2.0, "random")], "batch-1", visits=[])
        store.record([], "batch-2", visits=[Visit("d1", "ann", 1.0, 2.0)])
        store.set_draws("r", ["d1"])
        store.add_tag("new", "ann")
    return run


def change(run, *statements):
    with sqlite3.connect(answers_file(run)) as connection:
        connection.execute("PRAGMA ignore_check_constraints=ON")
        for statement in statements:
            connection.execute(statement)
    connection.close()


def test_a_file_of_another_program_is_left_alone(run):
    file = answers_file(run)
    with sqlite3.connect(file) as other:
        other.execute("CREATE TABLE photos (x)")
    other.close()
    before = file.read_bytes()
    with pytest.raises(TagspreadError, match="was not written by tagspread review; move it elsewhere"):
        AnswerStore.open(run, create=True)
    assert file.read_bytes() == before


@pytest.mark.parametrize(
    "statement",
    [
        "DROP TABLE answers",
        "CREATE TRIGGER t AFTER INSERT ON visits BEGIN DELETE FROM answers; END",
        "CREATE VIEW more AS WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i FROM n",
        "ALTER TABLE answers RENAME COLUMN who TO whom",
    ],
)
def test_changed_tables_are_refused(answered, statement):
    change(answered, statement)
    with pytest.raises(TagspreadError, match="its tables were changed"):
        AnswerStore.open(answered)


@pytest.mark.parametrize(
    ("statement", "read"),
    [
        ("UPDATE answers SET image = 'text'", lambda store: store.answers()),
        ("UPDATE answers SET tag = x'ff'", lambda store: store.history()),
        ("UPDATE answers SET answer = 'perhaps'", lambda store: store.answers()),
        ("UPDATE answers SET at = 'yesterday'", lambda store: store.conflicts()),
        ("UPDATE answers SET who = CAST(x'ff' AS TEXT)", lambda store: store.answers()),
        ("UPDATE visits SET digest = x'00'", lambda store: store.visited()),
        ("UPDATE visits SET at = 'x'", lambda store: store.undo("ann")),
        ("UPDATE draws SET digest = x'00'", lambda store: store.draws("r")),
        ("UPDATE tags SET name = x'00'", lambda store: store.added_tags()),
        ("INSERT INTO queue VALUES ('r', 0, 'd1', 0, 'random', '[1]')", lambda store: store.queue("r")),
        ("INSERT INTO queue VALUES ('r', 0, 'd1', 0, 'random', 'x')", lambda store: store.queue("r")),
    ],
)
def test_wrong_values_are_named(answered, statement, read):
    change(answered, statement)
    with AnswerStore.open(answered) as store, pytest.raises(TagspreadError, match=r"answers.sqlite is damaged \("):
        read(store)


def spoil(run, name, value):
    """Replace a fact or an array of the index."""
    file = run / FOLDER / FILE
    with np.load(file) as opened:
        arrays = dict(opened)
    if name in arrays:
        arrays[name] = value(arrays[name])
    else:
        facts = json.loads(arrays["facts"].tobytes())
        facts[name] = value(facts[name])
        arrays["facts"] = np.frombuffer(json.dumps(facts).encode(), np.uint8)
    np.savez(file, **arrays)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("rows", lambda rows: rows[:-1]),
        ("rows", lambda rows: rows - 100),
        ("unlabeled", lambda unlabeled: unlabeled.astype(float)),
        ("thresholds", lambda thresholds: thresholds.astype("U10")),
        ("thresholds", lambda thresholds: thresholds * np.nan),
        ("scores", lambda scores: scores * 7),
        ("scores", np.zeros_like),
        ("y", lambda y: y[:, :-1]),
        ("pseudo", lambda pseudo: pseudo + 7),
        ("names", lambda names: names[:-1]),
        ("names", lambda names: ["a\0b", *names[1:]]),
        ("digests", lambda digests: [3, *digests[1:]]),
        ("classes", lambda classes: classes[:1] * len(classes)),
        ("sources", lambda sources: [sources]),
        ("root", lambda root: [root]),
    ],
)
def test_an_odd_index_counts_as_missing(run, name, value):
    assert read_index(run) is not None
    spoil(run, name, value)
    assert read_index(run) is None


def test_compressed_arrays_are_not_read(run, index):
    del index
    file = run / FOLDER / FILE
    with np.load(file) as opened:
        arrays = dict(opened)
    np.savez_compressed(file, **arrays)  # a small file could fill the memory
    assert read_index(run) is None
