"""A method of the user's own, from a Python file: ``my_rules.py:MyRule``."""

from __future__ import annotations

import hashlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

from tagspread.errors import TagspreadError, did_you_mean
from tagspread.methods.base import Method


def method_of_file(name: str) -> type[Method]:
    """Return the class that ``FILE.py:CLASS`` names; the class may be left out where the file has only one method.

    The file is run, as Python files are when they are imported: give only files that you trust.
    """
    path, wanted = _file_and_class(name)
    module = _module(path)
    found = {
        key: value
        for key, value in vars(module).items()
        if isinstance(value, type) and issubclass(value, Method) and value.__module__ == module.__name__
    }
    if not found:
        raise TagspreadError(
            f"{path} defines no method; write a class of ts.Method in it, as docs/own-method.md shows."
        )
    if not wanted and len(found) == 1:
        return next(iter(found.values()))
    if not wanted:
        raise TagspreadError(f"{path} defines {', '.join(found)}; say which one you mean, as {path}:CLASS.")
    if wanted not in found:
        meant = did_you_mean(wanted, found)
        raise TagspreadError(f"{path} defines {', '.join(found)}, but no method {wanted!r}.{meant}")
    return found[wanted]


def whole_name(name: str) -> str:
    """Return the name of a method with the whole path of its file, if it is from one: good from any folder.

    >>> whole_name("cap")
    'cap'
    """
    if ".py" not in name:
        return name
    path, wanted = _file_and_class(name)
    return f"{path.absolute()}:{wanted}".removesuffix(":")


def text_of(name: str) -> str:
    """Return the digest of the file that a method is from: another text is another method; empty for one of ours."""
    return hashlib.sha256(_file_and_class(name)[0].read_bytes()).hexdigest() if ".py" in name else ""


def _file_and_class(name: str) -> tuple[Path, str]:
    """Take ``FILE.py:CLASS`` or ``FILE.py`` apart; a folder may have ``.py`` in its name, too."""
    file, colon, wanted = name.rpartition(".py:")
    return (Path(file + ".py"), wanted) if colon else (Path(name), "")


def _module(path: Path) -> ModuleType:
    """Return the file as a module, the same one every time it is asked for."""
    if not path.is_file():
        raise TagspreadError(f"there is no file {path} to take a method from.")
    text = path.read_bytes()
    key = "tagspread_user_" + hashlib.sha256(str(path.resolve()).encode() + b"\0" + text).hexdigest()[:16]
    if key in sys.modules:
        return sys.modules[key]
    spec = importlib.util.spec_from_file_location(key, path)
    if spec is None or spec.loader is None:
        raise TagspreadError(f"{path} cannot be read as Python.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[key] = module  # dataclasses look their module up while it is being made
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[key]
        raise TagspreadError(f"{path} stops with {type(error).__name__}: {error}. Fix it, then try again.") from error
    return module
