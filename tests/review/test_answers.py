import sqlite3
import subprocess
import sys

import pytest

from tagspread.errors import TagspreadError
from tagspread.review.answers import Answer, AnswerStore, Queued, Visit, answers_file, has_answers


def answer(tag="cat", value="yes", digest="d1", who="ann", when=1.0):
    return Answer(digest, f"{digest}.jpg", tag, value, who, when, 2.5, "random")


@pytest.fixture
def store(tmp_path):
    with AnswerStore.open(tmp_path, create=True) as opened:
        yield opened


def test_answers_survive_closing(tmp_path):
    given = [answer(), answer("dog", "unknown"), answer(digest="d2")._replace(image="caf\udce9.jpg")]
    assert not has_answers(tmp_path)
    with AnswerStore.open(tmp_path, create=True) as store:
        assert store.record(given, "a")
    assert has_answers(tmp_path)
    with AnswerStore.open(tmp_path) as store:
        assert store.answers() == given
        assert store.answers("d1") == given[:2]
        assert [one.label for one in store.answers()] == [1, -1, 1]


def test_the_latest_answer_counts_and_undo_restores_the_one_before(store):
    for batch, value in enumerate(("yes", "no", "unknown")):
        store.record([answer(value=value)], str(batch))
    for expected in ("unknown", "no", "yes"):
        assert [one.answer for one in store.answers()] == [expected]
        assert [one.answer for one in store.undo("ann").answers] == [expected]
    assert store.answers() == store.history() == []
    assert store.undo("ann") is None


def test_undo_takes_back_one_step_of_one_person(store):
    store.record([answer("cat"), answer("dog")], "a")
    store.record([answer("cow", who="bob")], "b")
    assert store.undo("bob", "a") is None  # a step of somebody else
    assert [one.tag for one in store.undo("ann").answers] == ["cat", "dog"]
    assert [one.tag for one in store.answers()] == ["cow"]


def test_a_step_sent_twice_is_recorded_once(store):
    assert store.record([answer()], "a")
    assert not store.record([answer()], "a")
    assert len(store.history()) == 1


def test_a_step_is_recorded_completely_or_not_at_all(store):
    with pytest.raises(TagspreadError, match="answer is 'maybe'"):
        store.record([answer(), answer(value="maybe")], "a")
    assert store.history() == []


def test_people_who_disagree_are_listed(store):
    store.record([answer(value="yes"), answer("dog", "yes"), answer("cow", "no")], "a")
    store.record(
        [answer(value="no", who="bob"), answer("dog", "yes", who="bob"), answer("cow", "unknown", who="bob")], "b"
    )
    [conflict] = store.conflicts()
    assert (conflict.counts.who, conflict.counts.answer, conflict.other.who) == ("bob", "no", "ann")
    store.record([answer(value="no")], "c")
    assert store.conflicts() == []


def test_leases_expire_and_are_not_shared(store):
    assert store.lease(["d1", "d2"], "one", 60) == ["d1", "d2"]
    assert store.lease(["d2", "d3"], "two", 60) == ["d3"]
    assert store.leased_by_others("two") == {"d1", "d2"}
    store.lease(["d1"], "one", -1)  # expired
    assert store.lease(["d1"], "two", 60) == ["d1"]
    store.release("two")
    assert store.leased_by_others("one") == set()


def test_the_queue_and_new_tags_are_kept(store):
    queue = [Queued(5, "random"), Queued(2, "border", ("cat",))]
    store.set_queue("run1", [("d5", queue[0]), ("d2", queue[1]), ("d5", Queued(6, "rare"))])
    assert store.queue("run1") == queue
    assert store.queue("run2") == []
    store.add_tag("lynx", "ann")
    store.add_tag("lynx", "bob")
    assert store.added_tags() == ["lynx"]


def test_the_random_sample_is_the_finished_beginning_of_the_draws(store):
    def visit(digest, batch, answers=()):
        store.record(answers, batch, visits=[Visit(digest, "ann", 1.0, 2.0)])

    store.set_draws("run1", ["d3", "d1", "d4", "d2"])
    store.set_draws("run1", ["d1", "d2"])  # the first order stays, also if the queue is made again
    assert store.draws("run1") == ["d3", "d1", "d4", "d2"]
    visit("d1", "a", [answer()])  # queued by another strategy, before its turn
    assert store.random_sample("run1") == []
    visit("d3", "b")  # skipped without an answer
    assert store.random_sample("run1") == ["d3", "d1"]
    visit("d2", "c")
    assert store.random_sample("run1") == ["d3", "d1"]
    visit("d4", "d")
    assert store.random_sample("run1") == ["d3", "d1", "d4", "d2"]
    assert store.undo("ann").visits == [Visit("d4", "ann", 1.0, 2.0)]
    assert store.random_sample("run1") == ["d3", "d1"]
    assert store.random_sample("run2") == []


def test_a_run_without_answers_says_how_to_get_them(tmp_path):
    with pytest.raises(TagspreadError, match=r"has no answers of reviewers .*tagspread review"):
        AnswerStore.open(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_file_is_named(tmp_path):
    answers_file(tmp_path).parent.mkdir()
    answers_file(tmp_path).write_text("no database, but text that is long enough to be read as one" * 20)
    with pytest.raises(TagspreadError, match=r"answers.sqlite is damaged"):
        AnswerStore.open(tmp_path)


def test_another_format_is_refused(tmp_path):
    AnswerStore.open(tmp_path, create=True).close()
    with sqlite3.connect(answers_file(tmp_path)) as connection:
        connection.execute("PRAGMA user_version=99")
    connection.close()
    with pytest.raises(TagspreadError, match="format 99, not 1"):
        AnswerStore.open(tmp_path)


def test_a_full_disk_loses_nothing(store):
    store.record([answer()], "a")
    pages = store._connection.execute("PRAGMA page_count").fetchone()[0]
    store._connection.execute(f"PRAGMA max_page_count={pages}")  # SQLite then raises as on a full disk
    with pytest.raises(TagspreadError, match=r"database or disk is full.*Answers saved before are kept"):
        store.record([answer(str(k)) for k in range(500)], "b")
    assert store.answers() == [answer()]
    store._connection.execute(f"PRAGMA max_page_count={pages + 1000}")
    assert store.record([answer("dog")], "b")


def test_nothing_heavy_is_imported():
    code = "import sys, tagspread.review.answers; sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
