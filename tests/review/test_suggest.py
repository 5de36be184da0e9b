"""Suggestions for a real run: scores and features of its images, answers so far, random draws that are kept."""

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

import tagspread as ts
from tagspread.cli import app
from tagspread.data.datasets.digits import CLASSES, digit_canvases
from tagspread.errors import TagspreadError
from tagspread.review.answers import Answer, AnswerStore, Visit
from tagspread.review.audit import audit_run
from tagspread.review.evidence import FEATURES, FILE, scored_run
from tagspread.review.index import fresh_index
from tagspread.review.prepare import prepare_index
from tagspread.review.session import Review
from tagspread.review.strategies import MIXTURE
from tagspread.review.suggest import queue_images, suggest_images
from tagspread.run.record import RunRecord
from tagspread.run.split import Part


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """A run of the head mode on 120 canvases, 50 labeled, of which one unlabeled file is broken afterwards."""
    top = tmp_path_factory.mktemp("suggest")
    drawn = digit_canvases(120, 1, seed=0)[0]
    (top / "images").mkdir()
    for i, image in enumerate(drawn.images):
        Image.fromarray(image.transpose(1, 2, 0)).save(top / "images" / f"p{i:03}.png")
    tags = ["|".join(name for name, on in zip(CLASSES, row, strict=True) if on) for row in drawn.y]
    lines = ["image,tags", *(f"p{i:03}.png,{tags[i]}" for i in range(50))]
    (top / "labels.csv").write_text("\n".join(lines) + "\n")
    settings: dict[str, Any] = {
        "mode": "head",
        "backbone": "small",
        "weights": "none",
        "image_size": 24,
        "unlabeled_weight": 1.0,
    }
    run = ts.train(top / "images", top / "labels.csv", top / "run", device="cpu", quiet=True, **settings)
    (top / "images" / "p119.png").write_bytes(b"")
    return run.path, drawn.y


@pytest.fixture
def run(world, tmp_path):
    """A copy of the run without answers."""
    copy = tmp_path / "run"
    copy.mkdir()
    for file in world[0].iterdir():
        if file.is_file():
            (copy / file.name).write_bytes(file.read_bytes())
    for folder in world[0].glob("features-*"):
        (copy / folder.name).symlink_to(folder)
    return copy


def answer(run, names, y, who="ann"):
    split = RunRecord.read(run).split
    with AnswerStore.open(run) as store:
        for name in names:
            row = split.names.index(name)
            digest, truth = split.digests[row].decode(), y[int(name[1:4])]
            answers = [
                Answer(digest, name, tag, "yes" if on else "no", who, 1.0, 1.0, "queue")
                for tag, on in zip(CLASSES, truth, strict=True)
            ]
            store.record(answers, name, who, [Visit(digest, who, 1.0, 1.0)])


def test_scores_are_those_of_the_runs_models(run):
    scored = scored_run(run, device="cpu")
    record = RunRecord.read(run)
    assert len(scored.rows) == 69
    assert scored.unreadable == 1
    files = record.files(scored.rows)
    probabilities = ts.load(run, device="cpu").predict(files).probabilities
    order = [np.argsort(column, kind="stable") for column in probabilities.T]
    for k in range(len(order)):  # half precision and calibration keep the order, but for ties
        assert np.all(np.diff(scored.scores[order[k], k].astype(float)) >= -2e-3)
    both = ts.load(run, device="cpu").predict(files, mirror=True).probabilities
    again = ts.load(run, device="cpu").calibration.probabilities((scored.scores.astype(float) + scored.mirror) / 2)
    assert again == pytest.approx(both, abs=2e-3)
    assert scored.baseline is not None
    assert scored.features is not None
    assert scored.labeled_features is not None
    assert not np.allclose(scored.baseline, scored.scores, atol=1e-2)
    assert scored.features.shape == (69, min(FEATURES, scored.features.shape[1]))
    assert len(scored.labeled_features) == 50


def test_scores_are_kept_until_the_run_changes(run, monkeypatch):
    first = scored_run(run, device="cpu")

    def never(*args, **kwargs):
        raise AssertionError("scored again")

    with monkeypatch.context() as patch:
        patch.setattr("tagspread.review.evidence._score", never)
        assert (scored_run(run).scores == first.scores).all()
        (run / "review" / FILE).write_bytes(b"damaged")
        with pytest.raises(AssertionError):
            scored_run(run)
    assert (scored_run(run, device="cpu").scores == first.scores).all()


def test_suggestions_are_unlabeled_readable_images_with_a_random_share(run):
    suggestions = suggest_images(run, 20, device="cpu")
    split = RunRecord.read(run).split
    assert len(set(suggestions.names)) == 20
    assert {split.parts[queued.row] for queued in suggestions.queue} == {Part.UNLABELED}
    assert "p119.png" not in suggestions.names
    assert [split.names[queued.row] for queued in suggestions.queue] == suggestions.names
    assert suggestions.left == 69 - 20
    random = [
        d for d, queued in zip(suggestions.digests, suggestions.queue, strict=True) if queued.strategy == "random"
    ]
    with AnswerStore.open(run) as store:
        assert store.draws(RunRecord.read(run).config.id)[: len(random)] == random
    assert suggest_images(run, 20).names == suggestions.names


def test_answered_images_are_not_suggested_again_and_random_ones_become_the_audit(run, world):
    first = suggest_images(run, 30, device="cpu")
    answer(run, first.names, world[1])
    second = suggest_images(run, 30)
    assert not set(first.names) & set(second.names)
    audit = audit_run(run)
    assert audit.sample >= sum(queued.strategy == "random" for queued in first.queue)
    split = RunRecord.read(run).split
    with AnswerStore.open(run) as store:
        sample = store.random_sample(RunRecord.read(run).config.id)
    truth = world[1][[int(split.names[split.digests.tolist().index(digest.encode())][1:4]) for digest in sample]]
    found = {tag.tag: tag.frequency.unlabeled.part for tag in audit.tags}
    assert found == {name: truth[:, k].sum() for k, name in enumerate(CLASSES) if name in found}
    assert len(suggest_images(run, 1000).names) == 39  # all that are left


def test_what_a_run_does_not_know_is_left_out_and_said(run):
    (run / "labeled_only.safetensors").unlink()
    for folder in run.glob("features-*"):
        folder.unlink()
    suggestions = suggest_images(run, 10, device="cpu")
    assert any("leaves out 'disagree'" in note for note in suggestions.notes)
    assert "disagree" not in {queued.strategy for queued in suggestions.queue}
    with pytest.raises(TagspreadError, match="labeled-only model or of mirror images"):
        suggest_images(run, 10, "disagree")


def test_suggestions_can_be_the_queue_of_the_page(run):
    suggestions = suggest_images(run, 12, "border", device="cpu")
    queue_images(run, suggestions)
    with AnswerStore.open(run) as store:
        assert store.queue(RunRecord.read(run).config.id) == suggestions.queue
    assert all(len(queued.tags) == 1 for queued in suggestions.queue)


def test_the_command_writes_a_table(run, tmp_path):
    out = tmp_path / "next.csv"
    arguments = ["suggest", str(run), "-n", "10", "-o", str(out), "--device", "cpu"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    rows = list(csv.DictReader(out.read_text().splitlines()))
    assert [row["image"] for row in rows] == suggest_images(run, 10).names
    assert any(row["strategy"] == "random" and row["ask_first"] == "" for row in rows)
    assert "59 unlabeled images are left" in result.output
    assert isinstance(CliRunner().invoke(app, arguments).exception, TagspreadError)  # next.csv exists
    wrong = CliRunner().invoke(app, ["suggest", str(run), "-o", str(tmp_path / "x.csv"), "--strategy", "rarest"])
    assert "Did you mean 'rare'" in str(wrong.exception)
    assert not Path(tmp_path / "x.csv").exists()


def test_images_that_are_gone_are_one_message(run, tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(TagspreadError, match="none of the 70 unlabeled images"):
        suggest_images(run, 10, images=tmp_path / "empty", device="cpu")
    assert not (run / "review" / FILE).exists()
    assert torch.is_grad_enabled()


def test_training_on_the_answers_takes_class_frequencies_from_their_random_share(run, world, capsys):
    answer(run, suggest_images(run, 30, "random", device="cpu").names, world[1])
    audit = audit_run(run)
    images = Path(RunRecord.read(run).config.data.images or "")
    settings: dict[str, Any] = {"mode": "head", "backbone": "small", "weights": "none", "image_size": 24}
    arguments = (images, images.parent / "labels.csv", run.parent / "next")
    done = ts.train(*arguments, answers=run, priors="audit", unlabeled_weight=1.0, device="cpu", **settings)
    assert done.log[-1]["chosen"]["options"]["priors"] == audit.priors
    assert "audit of 30 images drawn at random from 70 unlabeled images" in capsys.readouterr().out
    assert len(RunRecord.read(done.path).split.rows(Part.LABELED)) == 80
    with pytest.raises(TagspreadError, match=r"give that run with answers=RUN"):
        ts.train(*arguments, priors="audit", overwrite=True, **settings)
    with pytest.raises(TagspreadError, match=r"priors is 'audits'; give 'audit'"):
        ts.train(*arguments, answers=run, priors="audits", overwrite=True, **settings)
    words = ["train", str(images), "--labels", str(arguments[1]), "--out", str(run.parent / "x"), "--priors", "audit"]
    assert "with --answers RUN" in CliRunner().invoke(app, words).exception.on_command_line  # type: ignore[union-attr]


def test_the_page_starts_with_the_mixture_of_all_readable_images(run, world):
    prepare_index(run, device="cpu", quiet=True)
    index = fresh_index(run)
    assert index is not None
    probabilities = ts.load(run, device="cpu").predict(
        [index.path(k) for k in np.flatnonzero(index.unlabeled).tolist()]
    )
    assert index.scores[index.unlabeled] == pytest.approx(probabilities.probabilities, abs=2e-3)
    with AnswerStore.open(run) as store:
        review = Review(run, index, store)
        queue = store.queue(index.run_id)
        assert sorted(queued.row for queued in queue) == index.rows[index.unlabeled].tolist()
        assert queue[:20] == suggest_images(run, 69, again=True).queue[:20]
        strategies = [queued.strategy for queued in queue]
        assert set(MIXTURE) <= set(strategies)
        assert strategies[:30].count("random") == pytest.approx(30 * MIXTURE["random"], abs=1)
        assert review.item(int(np.flatnonzero(index.unlabeled)[0]))["strategy"] in strategies
    prepare_index(run, device="cpu", quiet=True)  # answers may refer to the queue: it stays
    with AnswerStore.open(run) as store:
        assert store.queue(index.run_id) == queue
