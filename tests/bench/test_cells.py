"""A cell's figures: honest and parity, from the log of its run."""

import json
import math

import pytest

from tagspread.bench.cells import cell_metrics
from tagspread.errors import TagspreadError
from tagspread.train.config import TrainConfig
from tagspread.train.trainer import Run


def line(epoch, stage, raw, ema):
    return {"epoch": epoch, "stage": stage, "loss": 1.0, "seconds": 2.0, "test_map_raw": raw, "test_map_ema": ema}


def test_honest_is_the_last_average_and_parity_the_best_of_the_last_stage(tmp_path):
    metrics = {"test": {"mAP": 0.3, "interval_90": (0.2, 0.4)}, "network": "raw"}
    log = [line(0, "warmup", 0.9, 0.1), line(1, "main", 0.5, 0.2), line(2, "main", 0.4, 0.3)]
    found = cell_metrics(Run(tmp_path, metrics, log), TrainConfig())
    assert (found["honest"], found["parity"], found["parity_is"], found["seconds"]) == (0.3, 0.5, "raw of epoch 1", 4.0)
    assert found["curves"]["test_map_raw"] == [0.9, 0.5, 0.4]
    alone = cell_metrics(Run(tmp_path, metrics, log[:1]), TrainConfig(method="asl"))
    assert (alone["honest"], alone["honest_is"], alone["parity"]) == (0.9, "raw", 0.9)
    averaged = cell_metrics(Run(tmp_path, metrics, log[:1]), TrainConfig(method="asl", warm_start_from="ema"))
    assert averaged["honest"] == 0.1
    chosen = cell_metrics(Run(tmp_path, metrics, log), TrainConfig(selection="held_out"))
    assert (chosen["honest"], chosen["honest_is"]) == (0.3, "raw, chosen on held-out images")
    assert (chosen["interval_90"], alone["interval_90"]) == ((0.2, 0.4), None)


def test_figures_that_cannot_be_measured_are_a_failure(tmp_path):
    run = Run(tmp_path, {"test": {"mAP": None, "interval_90": None}}, [line(0, "main", math.nan, math.nan)])
    with pytest.raises(TagspreadError, match="no test image carries any class"):
        cell_metrics(run, TrainConfig())


def test_curves_with_gaps_can_be_written_as_json(tmp_path):
    log = [line(0, "main", 0.5, 0.2), {"epoch": 1, "stage": "main", "loss": math.inf, "seconds": 1.0}]
    found = cell_metrics(Run(tmp_path, {"test": {"mAP": None, "interval_90": None}}, log), TrainConfig())
    assert json.loads(json.dumps(found, allow_nan=False))["curves"]["loss"] == [1.0, None]
