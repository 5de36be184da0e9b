"""User-defined methods: load a method class from a Python file, given as ``my_rules.py:MyRule``."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType

from tagspread.errors import TagspreadError, did_you_mean
from tagspread.methods.base import Method


def load_method(name: str) -> type[Method]:
    """Load the class that ``FILE.py:CLASS`` names; the class may be omitted if the file defines only one method.

    Loading executes the file, as importing it would. Use only files that you trust.
    """
    path, class_name = _file_and_class(name)
    if not path.is_file():
        raise TagspreadError(f"there is no file {path} to load a method from; check the path.")
    text = path.read_bytes()
    module = _module(path, text)
    classes = {
        key: value
        for key, value in vars(module).items()
        if isinstance(value, type) and issubclass(value, Method) and value.__module__ == module.__name__
    }
    if not classes:
        raise TagspreadError(
            f"{path} defines no method; write a subclass of ts.Method in it, as docs/guides/own-method.md shows."
        )
    if not class_name and len(classes) > 1:
        raise TagspreadError(f"{path} defines {', '.join(classes)}; choose one, as {path}:CLASS.")
    if class_name and class_name not in classes:
        suggestion = did_you_mean(class_name, classes)
        raise TagspreadError(f"{path} defines {', '.join(classes)}, but no method {class_name!r}.{suggestion}")
    method = classes[class_name] if class_name else next(iter(classes.values()))
    method.file_digest = hashlib.sha256(text).hexdigest()
    return method


def absolute_name(name: str) -> str:
    """Return the method's name with the absolute path of its file, if it has one, so that it works from any folder.

    >>> absolute_name("cap")
    'cap'
    """
    if not is_from_file(name):
        return name
    path, class_name = _file_and_class(name)
    return f"{path.absolute()}:{class_name}".removesuffix(":")


def is_from_file(name: str) -> bool:
    """Return whether a method's name stands for a Python file, which using the method executes."""
    return ".py" in name


def is_same_file(name: str, other: str) -> bool:
    """Return whether two names stand for the same Python file."""
    return is_from_file(name) and is_from_file(other) and _resolved(name) == _resolved(other)


def _resolved(name: str) -> str:
    return os.path.realpath(_file_and_class(name)[0])


def method_file_digest(name: str) -> str:
    """Return the SHA-256 digest of the file that defines a method, or an empty string for a built-in method."""
    return hashlib.sha256(_file_and_class(name)[0].read_bytes()).hexdigest() if is_from_file(name) else ""


def _file_and_class(name: str) -> tuple[Path, str]:
    """Split ``FILE.py:CLASS`` or ``FILE.py``. A folder in the path may also contain ``.py``."""
    file, colon, class_name = name.rpartition(".py:")
    return (Path(file + ".py"), class_name) if colon else (Path(name), "")


def _module(path: Path, text: bytes) -> ModuleType:
    """Import the file as a module; the same content gives the same module every time."""
    key = "tagspread_user_" + hashlib.sha256(str(path.resolve()).encode() + b"\0" + text).hexdigest()[:16]
    if key in sys.modules:
        return sys.modules[key]
    spec = importlib.util.spec_from_file_location(key, path)
    if spec is None or spec.loader is None:
        raise TagspreadError(f"{path} cannot be read as Python.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[key] = module  # dataclasses look up their module while it is being executed
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[key]
        raise TagspreadError(f"{path} raises {type(error).__name__}: {error}. Fix it, then try again.") from error
    return module
