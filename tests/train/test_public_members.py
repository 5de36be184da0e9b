"""No class in ``train/`` is several classes in one: at most 20 public members, the settings aside."""

import ast
from pathlib import Path

import pytest

from tagspread.train import loop

MOST = 20
FOLDER = Path(loop.__file__).parent


def public_members(node: ast.ClassDef) -> set[str]:
    """Return the names of methods, fields, and attributes that are set on ``self``."""
    names = set()
    for part in ast.walk(node):
        if isinstance(part, ast.FunctionDef) and part in node.body:
            names.add(part.name)
        if isinstance(part, ast.AnnAssign) and part in node.body and isinstance(part.target, ast.Name):
            names.add(part.target.id)
        if isinstance(part, ast.Attribute) and isinstance(part.ctx, ast.Store) and isinstance(part.value, ast.Name):
            names |= {part.attr} if part.value.id == "self" else set()
    return {name for name in names if not name.startswith("_")}


@pytest.mark.parametrize("file", sorted(FOLDER.rglob("*.py")), ids=lambda file: file.stem)
def test_states_are_small(file):
    classes = [node for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.ClassDef)]
    counts = {node.name: len(public_members(node)) for node in classes if node.name != "TrainConfig"}
    assert {name: count for name, count in counts.items() if count > MOST} == {}
