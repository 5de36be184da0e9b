import io
import json
import shutil
import time

import numpy as np
import pytest
from PIL import Image
from rich.console import Console

from tagspread.data.check.dataset import check_dataset, run_check
from tagspread.data.check.labels import similar_names
from tagspread.data.check.report import CheckReport, Finding, Place, render
from tagspread.data.tables.label_table import LabelTable
from tagspread.data.tables.options import GivenOptions
from tagspread.data.tables.read import read_table
from tagspread.errors import TagspreadError


def image(file, seed, size=(64, 48)):
    noise = np.random.default_rng(seed).integers(0, 256, (6, 8, 3), dtype=np.uint8)
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(noise).resize(size, Image.Resampling.BICUBIC).save(file)


@pytest.fixture
def folder(tmp_path):
    """Create forty different images and clean tables: 12 labeled, 8 test, 20 unlabeled images."""
    top = tmp_path / "images"
    for k in range(40):
        image(top / f"p{k:02}.png", k)
    tags = ["sea|sand", "sea", "sand", "sea|dune"]
    (tmp_path / "labels.csv").write_text("file,tags\n" + "".join(f"p{k:02}.png,{tags[k % 4]}\n" for k in range(12)))
    (tmp_path / "test.csv").write_text("file,tags\n" + "".join(f"p{k:02}.png,{tags[k % 4]}\n" for k in range(12, 20)))
    return top


def check(folder, labels="labels.csv", test="test.csv"):
    tables = [read_table(folder.parent / name, folder) if name else None for name in (labels, test)]
    return check_dataset(folder, *tables)


def write(folder, *rows, name="labels.csv", header="file,tags"):
    (folder.parent / name).write_text("\n".join([header, *rows, ""]))
    return name


def one(report, kind):
    found = [finding for finding in report.findings if finding.kind == kind]
    assert len(found) == 1, report.findings
    return found[0], [str(place) for place in found[0].places]


def shown(report, width=100):
    out = io.StringIO()
    render(report, Console(file=out, width=width))
    return out.getvalue()


def test_clean_folder(folder):
    report = check(folder)
    assert report.ok
    assert report.findings == ()
    assert report.counts == {
        "images": 40, "labeled": 12, "test": 8, "unlabeled": 20, "missing": 0, "unreadable": 0, "copies": 0,
        "copies_in_unlabeled": 0,
    }  # fmt: skip
    facts = {facts.name: facts for facts in report.classes}
    assert (facts["dune"].positives, facts["dune"].known, facts["dune"].proportion) == (3, 12, 0.25)
    assert 0 < facts["dune"].low < 0.25 < facts["dune"].high < 1
    assert facts["dune"].unlabeled_low == round(20 * facts["dune"].low)
    assert facts["dune"].unlabeled_high == round(20 * facts["dune"].high)
    text = shown(report)
    assert "40 images: 12 labeled, 8 test, 20 unlabeled" in text
    assert "Ready to train: no errors, no warnings." in text


def test_missing_files_and_suggestions(folder):
    image(folder / "deep" / "far.png", 99)
    write(
        folder, "P01.png,sea", "p02.jpg,sand|dune", "far.png,sea", "p-03.png,sand", "qqqqqqqq.bmp,sea", "p05.png,dune"
    )
    finding, places = one(check(folder), "missing_file")
    assert finding.level == "error"
    assert finding.message == "Missing image files (4): correct the names in the table or add the files."
    assert places == [
        "p02.jpg (labels row 2): did you mean p02.png?",
        "far.png (labels row 3): did you mean deep/far.png?",
        "p-03.png (labels row 4): did you mean p03.png?",
        "qqqqqqqq.bmp (labels row 5)",
    ]
    finding, places = one(check(folder), "names")  # other case: only one file can be meant, so it is used
    assert (finding.level, places) == ("note", ["labels: P01.png is p01.png"])


def test_unreadable_and_empty_images(folder):
    (folder / "p01.png").write_bytes((folder / "p01.png").read_bytes()[:300])
    (folder / "p13.png").write_bytes(b"")
    (folder / "p30.png").write_bytes(b"no image at all")
    (folder / "p31.png").write_bytes(b"")
    report = check(folder)
    found = {(p.level, p.kind): [str(place) for place in p.places] for p in report.findings}
    assert found[("error", "empty_file")] == ["p13.png (test labels row 2)"]
    assert found[("warning", "empty_file")] == ["p31.png"]
    assert found[("error", "unreadable")][0].startswith("p01.png (labels row 2): ")
    assert found[("warning", "unreadable")] == ["p30.png: no image format known to Pillow"]
    assert (report.counts["unreadable"], report.counts["unlabeled"]) == (4, 18)
    parts = ("labeled", "test", "unlabeled", "unreadable")
    assert sum(report.counts[part] for part in parts) == report.counts["images"]


def test_test_image_that_is_also_a_training_image(folder):
    shutil.copy(folder / "p02.png", folder / "p14.png")
    with Image.open(folder / "p03.png") as opened:
        opened.resize((200, 150)).convert("RGB").save(folder / "p15.jpg", quality=70)
    write(folder, "p14.png,sand", "p15.jpg,sea|dune", "p04.png,sea|sand", name="test.csv")
    finding, places = one(check(folder), "leak")
    assert finding.level == "error"
    assert places == [
        "p14.png (test labels row 1): same file as p02.png (labels row 3)",
        "p15.jpg (test labels row 2): looks like p03.png (labels row 4)",
        "p04.png (test labels row 3): is p04.png (labels row 5)",
    ]


def test_copies_in_the_unlabeled_set(folder):
    for old, new in ((0, 20), (12, 21), (30, 31), (30, 32)):
        shutil.copy(folder / f"p{old:02}.png", folder / f"p{new:02}.png")
    report = check(folder)
    assert report.ok
    assert one(report, "labeled_in_unlabeled")[1] == ["p00.png (labels row 1): same file as p20.png"]
    assert one(report, "test_in_unlabeled")[1] == ["p12.png (test labels row 1): same file as p21.png"]
    assert (report.counts["copies"], report.counts["copies_in_unlabeled"]) == (4, 2)
    assert "2 copies within the unlabeled set" in shown(report)


def test_copies_with_equal_and_with_conflicting_labels(folder):
    shutil.copy(folder / "p00.png", folder / "p04.png")  # both sea|sand
    shutil.copy(folder / "p01.png", folder / "p02.png")  # sea, sand
    report = check(folder)
    finding, places = one(report, "conflicting_labels")
    assert finding.level == "error"
    expected = "p02.png (labels row 3): same file as p01.png (row 2): sand (1 here, 0 there), sea (0 here, 1 there)"
    assert places == [expected]
    assert one(report, "listed_twice")[1] == ["p04.png (labels row 5): same file as p00.png (row 1)"]


def test_one_file_under_two_names(folder):
    (folder / "link.png").symlink_to(folder / "p00.png")
    paths = tuple(folder / name for name in ("p00.png", "link.png", "p01.png"))
    report = check_dataset(folder, LabelTable(paths, ("sea",), np.array([[1], [0], [0]])))
    assert "sea (0 here, 1 there)" in one(report, "conflicting_labels")[1][0]


def test_rows_without_a_known_label_are_unlabeled(folder):
    shutil.copy(folder / "p00.png", folder / "p12.png")
    paths = tuple(folder / f"p{k:02}.png" for k in range(6))
    y = np.array([[-1, -1], [1, 0], [1, -1], [0, 0], [0, 1], [0, 1]])
    test = LabelTable((folder / "p12.png",), ("sea", "sand"), np.array([[1, 1]]))
    report = check_dataset(folder, LabelTable(paths, ("sea", "sand"), y), test)
    assert one(report, "unknown_rows")[1] == ["p00.png (labels row 1)"]
    assert one(report, "rows_without_tags")[1] == ["p03.png (labels row 4)"]
    assert one(report, "test_in_unlabeled")[1] == ["p12.png (test labels row 1): same file as p00.png"]
    assert (report.counts["labeled"], report.counts["unlabeled"]) == (5, 34)


def test_tags(folder):
    header, y = "file,sea,Sea,owl,all,rare", ["1,0,0,1,1"] + ["1,0,0,1,0"] * 9 + ["0,1,,1,0"] * 2
    write(folder, *(f"p{k:02}.png,{cells}" for k, cells in enumerate(y)), header=header)
    write(folder, "p12.png,sae|sea", "p13.png,rare", name="test.csv")
    report = check(folder)
    assert one(report, "never_seen")[1] == ["owl: 0 of 10"]
    assert one(report, "hardly_seen")[1] == ["Sea: 2 of 12", "rare: 1 of 12"]
    assert one(report, "always_there")[1] == ["all: 12 of 12"]
    assert one(report, "similar_tags")[1] == ["'Sea': on 2 images; 'sea', on 10 images, differs only by case or spaces"]
    finding, places = one(report, "unknown_tags")
    assert finding.level == "warning"
    assert "left out of the metrics" in finding.message
    assert places == ["'sae': on 1 test image. Did you mean 'sea'?"]
    assert one(report, "not_in_test")[1] == ["Sea", "owl", "all"]


def test_cells_that_may_hold_several_tags(folder):
    """Only some cells have tags separated by blanks: too few for the reader to raise."""
    tags = ["sea", "sand", "sea", "sand", "sea|sand", "sea sand", "sea", "traffic light", "light", "sand"]
    write(folder, *(f"p{k:02}.png,{tag}" for k, tag in enumerate(tags)))
    finding, places = one(check(folder), "joined_tags")
    assert (finding.level, places) == ("warning", ["'sea sand': on 1 image"])


@pytest.mark.parametrize(
    ("counts", "pairs"),
    [
        ({"cat": 30, "car": 40, "cow": 20, "boat": 9, "goat": 8}, []),
        ({"cat": 30, "caz": 1}, [("cat", "caz")]),
        ({"bottle": 5, "botle": 5}, [("bottle", "botle")]),
        ({"dining table": 5, "DiningTable": 1, "dining_table": 1},
         [("dining table", "DiningTable"), ("dining table", "dining_table")]),
        ({"dog": 5, "dogs": 5}, [("dog", "dogs")]),
        ({"class 1": 50, "class 2": 1, "class 11": 1, "0": 50, "1": 1, "10": 40, "100": 2}, []),
        ({"Dog": 1, "dog": 9, "dgo": 1}, [("Dog", "dog"), ("dog", "dgo")]),
        ({}, []),
    ],
)  # fmt: skip
def test_similar_names(counts, pairs):
    assert [(a, b) for a, b, _ in similar_names(counts)] == pairs


def test_many_names_do_not_take_long():
    started = time.perf_counter()
    similar_names({f"{k * 7919:x} tag of mine": 5 for k in range(5000)})
    assert time.perf_counter() - started < 5  # usually a fifth of a second


def test_no_labels_no_unlabeled_small_unlabeled(folder):
    table = LabelTable((folder / "p00.png",), ("sea",), np.array([[-1]]))
    assert one(check_dataset(folder, table), "no_labels")[0].level == "error"
    none = LabelTable((), ("sea",), np.empty((0, 1), dtype=np.int8))
    report = check_dataset(folder, none)
    assert not report.ok
    assert report.classes[0].proportion is None
    paths = tuple(folder / f"p{k:02}.png" for k in range(40))
    y = np.array([[1], [0], [1], [0]] * 10)
    assert one(check_dataset(folder, LabelTable(paths, ("sea",), y)), "no_unlabeled")[0].level == "warning"
    finding, _ = one(check_dataset(folder, LabelTable(paths[:30], ("sea",), y[:30])), "small_unlabeled")
    assert (finding.level, "fewer unlabeled images (10) than labeled ones (30)" in finding.message) == ("note", True)


def test_without_labels_only_the_images_are_checked(folder):
    (folder / "p30.png").write_bytes(b"")
    seen = []
    report = check_dataset(folder, None, progress=lambda done, total: seen.append((done, total)))
    assert [finding.kind for finding in report.findings] == ["empty_file"]
    assert seen[-1] == (40, 40)


def run(folder, labels, test, as_json=False):
    out = io.StringIO()
    code = run_check(folder, labels, test, as_json, console=Console(file=out, width=100))
    return code, out.getvalue()


def test_run_check_prints_and_returns_the_exit_code(folder):
    labels, test = folder.parent / "labels.csv", folder.parent / "test.csv"
    assert run(folder, labels, test)[0] == 0
    write(folder, "gone.png,owl|gull", "p01.png,gull")
    code, text = run(folder, labels, test)
    assert code == 1
    assert "error Missing image files (1)" in text
    assert "    gone.png (labels row 1)\n" in text
    assert "Not ready to train: 2 errors; fix them and run the check again." in text


def test_run_check_as_json(folder):
    (folder / "p01.png").unlink()
    code, text = run(folder, folder.parent / "labels.csv", folder.parent / "test.csv", as_json=True)
    facts = json.loads(text)
    assert (code, facts["ok"]) == (1, False)
    place = facts["findings"][0]["places"][0]
    assert (place["file"], place["row"], place["table"]) == ("p01.png", 2, "labels")
    report = check(folder)
    assert json.loads(json.dumps(report.to_dict())) == report.to_dict() == facts


def test_an_unreadable_table_is_a_finding(folder):
    write(folder, "p01.png,sea,too many", "p02.png,sand")
    (folder / "p30.png").write_bytes(b"")
    (folder.parent / "none.csv").write_text("")
    code, text = run(folder, folder.parent / "labels.csv", folder.parent / "none.csv", as_json=True)
    facts = json.loads(text)
    assert code == 2
    assert [finding["kind"] for finding in facts["findings"]][:3] == ["table", "table", "empty_file"]
    assert "line 2" in facts["findings"][0]["message"]
    assert "none.csv" in facts["findings"][1]["message"]


def test_everything_is_reported_in_one_pass(folder):
    rows = ["../p00.png,sea;sand", "https://example.com/a.jpg,sea", "gone.png,sea;dune", "p01.png,sand;dune,more"]
    write(folder, *rows, "p02.png,sea;dune", "p03.png,sand", "P04.PNG,dune;sand", "lost.png,sea", "p02.png,sand;sea")
    code, text = run(folder, folder.parent / "labels.csv", None)
    assert code == 2
    lines = " ".join(text.split())
    for words in (
        "labels.csv line 2 names '../p00.png', which is outside the image folder",
        "line 3 names the web address 'https://example.com/a.jpg', which is not supported; download the images first",
        "line 5 has 3 cells, but the header has 2",
        "Tags in",
        "are separated by ';' (in 4 of the first 6 cells)",
        "Missing image files (2)",
        "gone.png (labels row 1)",
        "P04.PNG is p04.png",
        "listed in",
        "p02.png (lines 6 and 10)",
        "Not ready to train",
    ):
        assert words in lines, words


def test_conflicting_rows_of_a_wide_table(folder):
    write(folder, "p00.png,1,0", "p01.png,0,1", "p00.png,1,1", "p02.png,yes,maybe", header="file,sea,sand")
    code, text = run(folder, folder.parent / "labels.csv", None)
    assert code == 2
    assert "line 4 repeats" in text
    assert "of line 2 with other labels of sand; give each image one line" in text
    assert "column 'sand' holds 'maybe'" in text


def test_what_train_refuses_is_an_error(folder):
    """Tables from which nothing can be learned: training raises for the same ones."""
    write(folder, *(f"p{k:02}.png,sea" for k in range(6)))
    finding, _ = one(check(folder, test=None), "nothing_to_learn")
    assert (finding.level, "No label says that a tag is absent" in finding.message) == ("error", True)
    write(folder, *(f"p{k:02}.png,0" for k in range(6)), header="file,sea")
    finding, _ = one(check(folder, test=None), "nothing_to_learn")
    assert (finding.level, "No labeled image has any tag" in finding.message) == ("error", True)


def test_no_tag_of_the_test_labels_is_known(folder):
    write(folder, "p12.png,owl", "p13.png,gull", name="test.csv")
    assert one(check(folder), "unknown_tags")[0].level == "error"


def test_many_rows_without_a_tag(folder):
    labels = folder.parent / write(
        folder, *(f"p{k:02}.png,{'sea|sand' if k < 6 else ''}" for k in range(14)), "p15.png,sea"
    )
    code, text = run(folder, labels, None)
    assert code == 2
    assert "8 of 15 images (53 %) have no tag" in text
    assert "count as unlabeled" not in text  # that is the question
    out = io.StringIO()
    console = Console(file=out, width=200)
    options = GivenOptions(blank="unlabeled")

    def estimate(report):
        return f"training on {report.counts['labeled']} images takes a minute"

    assert run_check(folder, labels, None, console=console, table_options=options, estimate=estimate) == 0
    assert "40 images: 7 labeled, 33 unlabeled" in out.getvalue()
    assert "count as unlabeled" in out.getvalue()
    assert out.getvalue().endswith("training on 7 images takes a minute\n")


def test_a_missing_table_raises(folder):
    for labels, test in (("none.csv", None), ("labels.csv", "none.csv")):
        with pytest.raises(TagspreadError, match=r"there is no file .*none\.csv"):
            run(folder, folder.parent / labels, test and folder.parent / test)


def test_a_folder_without_images_gives_exit_code_1(tmp_path):
    (tmp_path / "images").mkdir()
    (tmp_path / "labels.csv").write_text("image,tags\na.jpg,x\n")
    code, text = run(tmp_path / "images", tmp_path / "labels.csv", None)
    assert code == 1
    assert "Missing image files (1)" in text


def test_no_folder(tmp_path):
    with pytest.raises(TagspreadError, match="is not a folder"):
        check_dataset(tmp_path / "none", None)


def test_long_lists_are_shortened_and_markup_in_names_is_escaped():
    places = tuple(Place(file=f"[bold]{k}.jpg") for k in range(13))
    text = shown(CheckReport((Finding("warning", "x", "Odd [red] files (13): look.", places),)), width=40)
    assert "warning Odd [red] files (13): look." in text
    assert "    [bold]9.jpg\n    and 3 more\n" in text
    assert "[bold]10.jpg" not in text
    assert "Ready to train, with 1 warning to read first." in " ".join(text.split())


def test_labeled_images_that_differ_from_the_others_are_a_warning(tmp_path):
    rng = np.random.default_rng(0)
    paths = [tmp_path / f"p{k:03}.png" for k in range(160)]
    for k, path in enumerate(paths):
        light = 40 if k % 2 else 0  # every second image is lighter
        pixels = rng.integers(0, 200, (3, 3, 3)) + light
        Image.fromarray(np.kron(pixels, np.ones((16, 16, 1))).astype(np.uint8)).save(path)
    y = rng.integers(0, 2, (40, 1)).astype(np.int8)
    fair, selected = (LabelTable(paths[at : at + 40 * step : step], ("sea",), y) for at, step in ((0, 1), (1, 2)))
    (found,) = [finding for finding in check_dataset(tmp_path, fair).of("note") if finding.kind == "sample"]
    assert found.message.startswith("The labeled images look like a random sample: a classifier on thumbnails")
    assert [finding.kind for finding in check_dataset(tmp_path, selected).of("warning")] == ["sample"]
