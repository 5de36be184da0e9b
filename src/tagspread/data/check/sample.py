"""Check whether the labeled images are a random sample: compare their thumbnails with those of the unlabeled images."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tagspread.core.two_sample import two_sample_test
from tagspread.data.check.images import Inventory
from tagspread.data.check.report import LABELS, Finding


def check_sample(inventory: Inventory) -> Iterator[Finding]:
    """Yield a warning if the labeled images differ from the unlabeled ones, a note if not, nothing if there are few.

    Thumbnails show colors and layout only; training repeats the test on the features of its network.
    """
    gone = inventory.missing | inventory.broken.keys()
    tagged = zip(inventory.rows[LABELS], inventory.has_label[LABELS], strict=True)
    labeled = sorted({image for image, has_label in tagged if has_label} - gone)
    unlabeled = sorted(inventory.unlabeled)
    thumbs = inventory.thumbs.reshape(len(inventory.thumbs), -1)
    found = two_sample_test(thumbs[np.array(labeled, int)], thumbs[np.array(unlabeled, int)])
    if found is not None:
        text = found.in_words("thumbnails")
        message = text[0].upper() + text[1:].removesuffix(".") + "."
        yield Finding("warning" if found.differs else "note", "sample", message)
