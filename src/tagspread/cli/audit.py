"""``tagspread audit``: class frequencies and the quality of pseudo-labels, from a random sample of answers."""

from __future__ import annotations

import json

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tagspread.cli.common import AsJson, RunPath, say


def audit(run: RunPath, as_json: AsJson = False) -> None:
    """Audit a run: estimate how frequent each tag is in its unlabeled images, and how good its pseudo-labels are.

    Review images first, with 'tagspread review': about three of ten are drawn at random, and only these are used,
    because they are an unbiased sample of the unlabeled images. Each interval is an exact 90 % interval for one tag,
    not for all tags together. A warning names each tag whose frequency in the labeled images contradicts the sample.

    Example:
    $ tagspread audit run
    """
    from tagspread.review.audit import audit_in_words, audit_run, interval, percent

    found = audit_run(run)
    if as_json:
        text = json.dumps(found.to_dict(), indent=2)
        Console().print(text, highlight=False, markup=False, soft_wrap=True)
        return
    table = Table("tag", box=None)
    for heading in ("% of labels", "% of unlabeled", "precision %", "recall %"):
        table.add_column(heading, justify="right")
    for tag in found.tags:
        quality = tag.pseudo_labels
        shares = ["", ""] if quality is None else [interval(quality.precision), interval(quality.recall)]
        labeled = percent(tag.frequency.labeled.value)
        table.add_row(escape(tag.tag), labeled, interval(tag.frequency.unlabeled), *shares)
    Console().print(table)
    for line in audit_in_words(found):
        say(line)
