"""Fixtures of ``tests/predict``, used here as well."""

from tests.predict.conftest import drawn, folder, run, tagger

__all__ = ["drawn", "folder", "run", "tagger"]
