"""Test the wheel in a fresh environment (``make dist``).

The script checks that the wheel contains all files of the package, installs it into a fresh environment, and runs a few
commands there. The dependencies (5 GB) are not installed again: a .pth file makes those of the present environment
available. Python ignores .pth files inside a folder added in this way, so an editable install of tagspread is not
found, and the commands run the wheel.
"""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
COMMANDS = (
    "--version",
    "methods",
    "demo --canvases 100 --epochs 1 --out demo --quiet",
    "report demo/cap --no-images",  # reads templates, styles and scripts
    "export demo/cap --hub hub",  # reads the template of the model card
    "bench demo --methods asl --seeds 1 --canvases 100 --set warmup_epochs=1 --set epochs=1 --out bench",
)


def check_contents(wheel: Path) -> None:
    """Raise unless the wheel holds every file below ``src``, data files and ``py.typed`` included."""
    with zipfile.ZipFile(wheel) as opened:
        packed = set(opened.namelist())
    sources = {
        file.relative_to(ROOT / "src").as_posix()
        for file in (ROOT / "src" / "tagspread").rglob("*")
        if file.is_file() and "__pycache__" not in file.parts
    }
    if missing := sorted(sources - packed):
        raise SystemExit(f"{wheel.name} lacks {', '.join(missing)}")


def main() -> None:
    """Check and test the wheel given on the command line."""
    wheel = Path(sys.argv[1]).resolve()
    check_contents(wheel)
    with tempfile.TemporaryDirectory() as work:
        fresh = Path(work, "venv")
        subprocess.run([sys.executable, "-m", "venv", fresh], check=True)
        python = fresh / "bin" / "python"
        subprocess.run([python, "-m", "pip", "install", "--quiet", "--no-deps", wheel], check=True)
        packages = next(fresh.glob("lib/python3*/site-packages"))
        (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")
        imported = subprocess.run(
            [python, "-c", "import tagspread; print(tagspread.__file__)"],
            cwd=work, check=True, capture_output=True, text=True,
        ).stdout.strip()  # fmt: skip
        if not Path(imported).is_relative_to(fresh):
            raise SystemExit(f"the fresh environment imports {imported}, not the wheel")
        for command in COMMANDS:
            sys.stdout.write(f"tagspread {command}\n")
            sys.stdout.flush()
            subprocess.run([fresh / "bin" / "tagspread", *command.split()], cwd=work, check=True)
    sys.stdout.write(f"{wheel.name} works\n")


if __name__ == "__main__":
    main()
