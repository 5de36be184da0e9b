"""A grid in mode ``head``, on a frozen network."""

import json

from tagspread.bench.results import Results


def test_heads_on_a_frozen_network_whose_features_are_computed_once(ask, bench, tmp_path):
    head = {"preset": "default"}  # one seed: an untrained network is another with each
    settings = {"mode": "head", "flip": True, "warmup_epochs": 0, "epochs": 0}
    failed, told = bench(ask(settings, methods=("bce", "cap", "drml"), **head))
    assert failed == 1  # the one that trains a network of its own
    records = {(r["method"], r["seed"]): r for r in Results(tmp_path / "out").read()}
    assert "trains the network in its own way" in records["drml", 1]["message"]
    for method in ("bce", "cap"):
        fitted = records[method, 1]
        about = json.loads((tmp_path / "out" / "cells" / fitted["key"] / "metrics.json").read_text())
        assert fitted["honest"] == fitted["parity"] == about["test"]["mAP"]
    features = tmp_path / "out" / "features"
    computed = sorted(features.glob("features-*/*.safetensors"))
    assert len({file.parent for file in computed}) == 2  # of the images, and of their mirror images
    failed, told = bench(ask(settings, study="thresholds", methods=None, **head))
    assert (failed, len(told.cells)) == (0, 2)
    assert sorted(features.glob("features-*/*.safetensors")) == computed
