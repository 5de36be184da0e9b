"""A grid in mode ``head``, on a frozen network."""

import json

from tagspread.bench.results import Results


def test_heads_on_a_frozen_network_whose_features_are_looked_at_once(ask, bench, tmp_path):
    head = {"preset": "default"}  # one seed: an untrained network is another with each
    settings = {"mode": "head", "flip": True, "warmup_epochs": 0, "epochs": 0}
    failed, told = bench(ask(settings, methods=("bce", "cap", "drml"), **head))
    assert failed == 1  # the one that trains a network of its own
    records = {(r["method"], r["seed"]): r for r in Results(tmp_path / "out").read()}
    assert "needs a network that is trained on images" in records["drml", 1]["message"]
    for method in ("bce", "cap"):
        fitted = records[method, 1]
        about = json.loads((tmp_path / "out" / "cells" / fitted["key"] / "metrics.json").read_text())
        assert fitted["honest"] == fitted["parity"] == about["test"]["mAP"]
    looked_at = sorted((tmp_path / "out" / "features").glob("*.npy"))
    assert len(looked_at) == 2  # the images, and the training part's mirror images
    failed, told = bench(ask(settings, study="thresholds", methods=None, **head))
    assert (failed, len(told.cells)) == (0, 2)
    assert sorted((tmp_path / "out" / "features").glob("*.npy")) == looked_at
