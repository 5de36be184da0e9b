"""What labels.json says about each threshold: its reason, and the rates to expect."""

from typing import Any

import pytest

from tagspread.errors import TagspreadError
from tagspread.run import schema
from tagspread.run.thresholds import Expected, threshold_rows

CLASSES = ["cat", "cow", "dog", "owl"]
FACTS: dict[str, Any] = {
    "thresholds": [0.5, 0.4, 0.3, None],
    "decision": {
        "policy": "precision:0.9", "chosen_on": "50 images of t.csv", "positives": [30, 7, 1, 40],
        "classes_with_pooled_threshold": ["dog"], "classes_with_shrunken_threshold": ["cow"],
        "classes_never_chosen": ["owl"],
        "expected": {
            "confidence": 0.9, "precision": [[0.9, 0.8, 0.95], [0.5, 0.2, 0.8], None, None],
            "recall": [[0.7, 0.6, 0.8], [1.0, 0.6, 1.0], None, None],
        },
    },
}  # fmt: skip


def test_each_threshold_has_its_reason():
    cat, cow, dog, owl = threshold_rows(CLASSES, FACTS)
    assert (cat.reason, cat.positives, cat.precision) == ("", 30, Expected(0.9, 0.8, 0.95))
    assert cow.reason == "on 7 images only: the images of the other tags count, too"
    assert dog.reason == "on 1 image only: shares the threshold of all tags together"
    assert (dog.precision, dog.recall) == (None, None)
    assert owl.threshold is None
    assert owl.reason == "never predicted: no threshold satisfies the policy"


def test_facts_of_earlier_runs_say_less():
    row = threshold_rows(["cat"], {"thresholds": [0.5]})[0]
    assert (row.reason, row.positives, row.precision, row.recall) == ("", None, None, None)


@pytest.mark.parametrize("name", ["positives", "precision", "recall"])
def test_a_list_of_another_length_is_damage(name):
    decision = FACTS["decision"] | {"expected": dict(FACTS["decision"]["expected"])}
    values = decision if name == "positives" else decision["expected"]
    values[name] = values[name][:-1]
    facts = {"classes": CLASSES, "decision": decision}
    with pytest.raises(TagspreadError, match=f"{name} does not have one item per class"):
        schema.validate(facts, schema.Record(rule=schema.LABELS.rule), "labels.json")
