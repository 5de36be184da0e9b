"""Tag short texts: 60 of 1,200 are tagged, the rest are not. Runs in seconds, downloads nothing.

    python examples/text.py

The texts are generated: each topic has words of its own, a text has one to three topics, and most words belong to no
topic at all. With texts of your own, replace ``make_texts`` and keep the rest.
"""

from __future__ import annotations

import numpy as np
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.pipeline import make_pipeline

import tagspread as ts

TOPICS = ["sport", "politics", "music", "food", "science"]


def make_texts(count: int, seed: int = 0) -> tuple[list[str], np.ndarray]:
    """Return texts and, for each, which topics it has."""
    rng = np.random.default_rng(seed)
    y = np.zeros((count, len(TOPICS)), dtype=int)
    texts = []
    for row in y:
        row[rng.choice(len(TOPICS), size=rng.integers(1, 4), replace=False)] = 1
        words = [f"{TOPICS[topic]}{rng.zipf(1.3) % 80}" for topic in rng.choice(np.flatnonzero(row), 8)]
        words += [f"word{rng.zipf(1.2) % 2000}" for _ in range(30)]
        texts.append(" ".join(rng.permutation(words)))
    return texts, y


def main() -> None:
    """Train without and with the unlabeled texts, and compare on texts that neither has seen."""
    texts, y = make_texts(1200)
    test_texts, test_y = make_texts(1000, seed=1)
    given = y.copy()
    given[60:] = -1  # a row of -1 is unlabeled

    for name, method in (("labeled texts alone", "bce"), ("with the unlabeled texts", "cap")):
        model = make_pipeline(TfidfVectorizer(sublinear_tf=True), ts.TagSpreadClassifier(method)).fit(texts, given)
        print(f"{name}: mAP {100 * model.score(test_texts, test_y):.1f}")

    tagger = model[-1]
    print(f"chosen: {tagger.settings_.method}, an unlabeled text weighs {tagger.unlabeled_weight_:g}")
    for text, tags in zip(test_texts[:3], model.predict(test_texts[:3]), strict=True):
        print([TOPICS[k] for k in np.flatnonzero(tags)], "<-", text[:60], "...")


if __name__ == "__main__":
    main()
