import numpy as np
import pytest
from scipy.stats import beta

from tagspread.errors import TagspreadError
from tagspread.review.answers import AnswerStore
from tagspread.review.index import check_images, fresh_index, read_index
from tagspread.review.queue import doubts, random_draws
from tagspread.review.session import Given, Review
from tests.review.conftest import EVIL, TAGS


def finish(review, k, value="yes", who="ann", tags=TAGS):
    review.record(who, f"batch-{k}-{who}-{value}", [Given(k, tag, value) for tag in tags], [k], seconds=5.0)


def test_the_queue_is_the_doubtful_images_and_each_fifth_is_the_next_random_draw(review, index):
    order = [item["image"] for item in review.next("one", 40)]
    strategies = [review.item(k)["strategy"] for k in order]
    assert sorted(order) == list(range(40))
    assert [k + 1 for k, strategy in enumerate(strategies) if strategy == "random"] == [5, 10, 15, 20, 25, 30, 35, 40]
    doubt = {k: 1 - 2 * np.abs(index.scores[k] - 0.5).min() for k in order}  # independent: all thresholds are 0.5
    by_doubt = [doubt[k] for k, strategy in zip(order, strategies, strict=True) if strategy == "doubtful"]
    assert by_doubt == sorted(by_doubt, reverse=True)
    draws = iter(review.store.draws(index.run_id))
    assert sorted(review.store.draws(index.run_id)) == sorted(index.digests[:40])
    placed = set()
    for k, strategy in zip(order, strategies, strict=True):
        if strategy == "random":
            assert index.digests[k] == next(digest for digest in draws if digest not in placed)
        placed.add(index.digests[k])


def test_random_draws_depend_on_the_run_only():
    digests = [f"{k:016x}" for k in range(50)]
    assert random_draws(digests, "a") == random_draws(digests[::-1] + digests[:3], "a")
    assert random_draws(digests, "a") != random_draws(digests, "b")
    assert sorted(random_draws(digests, "a")) == digests


def test_a_tag_that_is_never_predicted_raises_no_doubt():
    assert doubts(np.array([[0.4, 0.99]]), np.array([0.5, np.inf])).tolist() == [[0.8, 0.0]]


def test_two_pages_get_different_images(review):
    one = {item["image"] for item in review.next("one", 25)}
    two = {item["image"] for item in review.next("two", 25)}
    assert (len(one), len(two)) == (25, 15)
    assert not one & two
    review.release("one")
    assert {item["image"] for item in review.next("two", 40)} == one | two


def test_finished_images_are_not_shown_again_until_undone(review):
    first, second = (item["image"] for item in review.next("one", 2))
    finish(review, first)
    assert [item["image"] for item in review.next("one", 1)] == [second]
    assert review.progress()["done"] == 1
    undone = review.undo("ann")
    assert undone["images"] == [first]
    assert {one["tag"] for one in undone["answers"]} == set(TAGS)
    assert [item["image"] for item in review.next("one", 1)] == [first]
    assert review.item(first)["answers"] == {}


def test_everything_is_there_after_a_restart(review, run, index):
    finish(review, 3, "no")
    review.record("bob", "batch-of-bob", [Given(3, "cat", "yes")], seconds=2)
    review.add_tag("  lynx  cub ", "ann")
    review.store.close()
    with AnswerStore.open(run) as store:
        again = Review(run, index, store)
        assert again.tags == [*TAGS, "lynx cub"]
        assert again.item(3)["answers"]["cat"] == {"answer": "yes", "who": "bob", "other": "ann: no"}
        assert again.item(3)["visited"]
        assert again.progress() == {"done": 1, "images": 40, "conflicts": 1, "checked": 0}
        assert [item["image"] for item in again.next("one", 5, status="conflict")] == [3]
        assert [answer.seconds for answer in store.answers()] == [1.0, 1.0, 1.0, 1.0, 2.0]


def test_filters(review, index):
    finish(review, 4, "no")
    by_status = {status: {i["image"] for i in review.next("one", 99, status=status)} for status in ("all", "answered")}
    assert by_status == {"all": set(range(40)), "answered": {4}}
    in_a = {item["image"] for item in review.next("one", 99, folder="a", status="all")}
    assert in_a == {k for k in range(40) if k % 3 == 0}
    cats = {item["image"] for item in review.next("one", 99, tag="cat", status="all")}
    assert cats == {k for k in range(40) if index.scores[k, 0] >= 0.5 and k != 4}  # the answer to 4 is no
    with pytest.raises(TagspreadError, match="status is 'wrong'"):
        review.next("one", 1, status="wrong")


def test_the_grid_is_sorted_by_probability_and_leaves_out_what_is_answered(review, index):
    called = [item["image"] for item in review.grid("one", 40, "dog", "called")]
    scores = index.scores[:40, 1]
    assert called == sorted(np.flatnonzero(scores >= 0.5).tolist(), key=lambda k: -scores[k])
    missed = [item["image"] for item in review.grid("one", 40, "dog", "missed")]
    assert missed == sorted(np.flatnonzero(scores < 0.5).tolist(), key=lambda k: -scores[k])
    review.record("ann", "batch-0001", [Given(called[0], "dog", "no"), Given(called[1], "dog", "yes")], grid=True)
    assert [item["image"] for item in review.grid("one", 40, "dog", "called")] == called[2:]
    assert {answer.source for answer in review.store.answers()} == {"grid"}
    assert not review.item(called[0])["visited"]


def test_confirmed_pseudo_labels_are_counted_on_the_random_sample_only(review, index):
    number = {digest: k for k, digest in enumerate(index.digests[:40])}
    draws = [number[digest] for digest in review.store.draws(index.run_id)]
    finish(review, draws[9], "yes")  # beyond the sample: not all draws before it are finished
    assert review.progress()["checked"] == 0
    for k in draws[:3]:
        finish(review, k, "yes")
    finish(review, draws[3], "no")
    positives = [int(index.pseudo[k].sum()) for k in draws[:4]]
    confirmed, total = sum(positives[:3]), sum(positives)
    progress = review.progress()
    assert progress["checked"] == total
    assert progress["confirmed"] == pytest.approx(confirmed / total)
    assert progress["low"] == pytest.approx(beta.ppf(0.05, confirmed, total - confirmed + 1))
    assert progress["high"] == pytest.approx(beta.ppf(0.95, confirmed + 1, total - confirmed))


def test_examples_are_labeled_images_then_answers(review):
    assert review.examples("cow") == [42, 47]
    review.record("ann", "batch-0001", [Given(7, "cow", "yes"), Given(8, "cow", "no")])
    assert review.examples("cow") == [42, 47, 7]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("  ", "needs 1 to 100 characters"),
        ("x" * 101, "needs 1 to 100"),
        ("a\x00b", "all of them visible"),
        ("a|b", "cannot contain"),
        ("Tags", "name of a column"),
        ("CAT", "there is a tag 'cat' already"),
    ],
)
def test_bad_tags_are_refused(review, name, message):
    with pytest.raises(TagspreadError, match=message):
        review.add_tag(name, "ann")
    assert review.tags == list(TAGS)


def test_bad_answers_are_refused_and_nothing_is_kept(review):
    for given, message in (
        (Given(48, "cat", "yes"), "no image number 48"),
        (Given(-1, "cat", "yes"), "no image number -1"),
        (Given(1, "lynx", "yes"), "no tag 'lynx'"),
        (Given(1, "cat", "maybe"), "answer is 'maybe'"),  # type: ignore[arg-type]
    ):
        with pytest.raises(TagspreadError, match=message):
            review.record("ann", "batch-0001", [Given(0, "cat", "yes"), given], [0])
    assert review.store.history() == []
    assert review.progress()["done"] == 0


def test_the_index_is_read_as_it_was_written(run, index):
    again = read_index(run)
    for name in vars(index):
        np.testing.assert_array_equal(getattr(again, name), getattr(index, name))
    assert fresh_index(run) is not None
    (run / "labels.json").write_text("{}")
    assert fresh_index(run) is None  # the run changed
    assert fresh_index(run.parent) is None


def test_missing_images_are_counted_and_a_run_without_any_is_refused(run, index):
    assert check_images(run, index) == 0
    index.path(0).unlink()
    assert check_images(run, index) == 1
    for k in range(1, 40):
        index.path(k).unlink()
    with pytest.raises(TagspreadError, match=r"none of the 40 unlabeled images .* is there .*images=DIR"):
        check_images(run, index)


def test_names_that_look_like_markup_stay_text(review):
    assert EVIL in review.overview()["tags"]
