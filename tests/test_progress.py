"""Progress bars: one for each step, with rate and time left; none where nobody looks."""

import io

from rich.console import Console

from tagspread.core.metrics import average_precision_interval, mean_average_precision_interval
from tagspread.progress import Watcher


def terminal():
    return Console(file=io.StringIO(), force_terminal=True, width=100)


def bars(watcher):
    return [(task.description, task.completed, task.total) for task in watcher._progress.tasks]


def test_each_step_has_its_own_bar():
    watcher = Watcher(console=terminal())
    watcher.begin("decoding")(160, 160)
    assert bars(watcher) == [("decoding", 160, 160)]
    report = watcher.begin("computing features")
    report(3, 10)
    report(4, 10)
    assert bars(watcher) == [("computing features", 4, 10)]
    watcher.begin("fitting the head")
    assert bars(watcher) == []  # no bar stays full while another step is under way
    watcher.close()
    assert list(watcher.stopwatch.seconds()) == ["starting", "decoding", "computing features", "fitting the head"]


def test_the_bar_of_training_stays_while_images_are_scored():
    watcher = Watcher(console=terminal())
    watcher.epoch_step(0, 64, 1000)
    watcher.begin("labeling")(5, 50)
    assert bars(watcher) == [("training, epoch 1", 64, 1000), ("labeling", 5, 50)]
    watcher.epoch_step(1, 128, 1000)
    assert bars(watcher) == [("training, epoch 2", 128, 1000)]
    watcher.close()


def test_a_file_gets_no_bars():
    file = io.StringIO()
    watcher = Watcher(console=Console(file=file))
    watcher.begin("decoding")(1, 2)
    watcher.close()
    assert file.getvalue() == ""


def test_intervals_report_their_samples():
    scores, y = [[0.9], [0.8], [0.4], [0.3]], [[1], [0], [1], [0]]
    seen: list[tuple[int, int]] = []

    def progress(done, total):
        seen.append((done, total))

    mean_average_precision_interval(scores, y, samples=30, progress=progress)
    average_precision_interval(scores, y, samples=40, progress=progress)
    assert (30, 30) in seen
    assert seen[-1] == (40, 40)
