"""The run of ``tests/predict``, which these tests read as well."""

from tests.predict.conftest import drawn, folder, run, tagger

__all__ = ["drawn", "folder", "run", "tagger"]
