"""Execute the notebooks and store their outputs in them (``make notebooks``).

Needs the extra ``docs``. Figures are stored as small PNG images, so that the notebooks stay small.
"""

from __future__ import annotations

import sys
from pathlib import Path

import nbformat
from nbclient import NotebookClient

FOLDER = Path(__file__).parent


def main() -> None:
    """Execute every notebook from its first cell to its last."""
    for file in sorted(FOLDER.glob("*.ipynb")):
        notebook = nbformat.read(file, as_version=4)
        NotebookClient(notebook, timeout=600, kernel_name="python3", coalesce_streams=True).execute()
        for cell in notebook.cells:  # times and counters differ from run to run
            cell.metadata.pop("execution", None)
            if cell.cell_type == "code":
                cell.execution_count = None
                for output in cell.outputs:
                    output.pop("execution_count", None) if output.output_type != "execute_result" else None
        nbformat.write(notebook, file)
        sys.stdout.write(f"{file.name}: {file.stat().st_size / 1024:.0f} KB\n")


if __name__ == "__main__":
    main()
