"""``tagspread methods``: list the methods for pseudo-labels and unlabeled images."""

from __future__ import annotations

from rich.table import Table

from tagspread.progress import Output


def methods() -> None:
    """List the methods that 'tagspread train --method' accepts: the name of each, and what it does."""
    from tagspread.methods import METHODS

    table = Table("method", "what it does")
    for name, method in METHODS.items():
        table.add_row(name, method.summary)
    Output().print(table)
