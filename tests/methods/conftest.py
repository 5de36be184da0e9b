"""The small dataset of the training tests, and settings that train for about a second."""

import pytest

from tests.train.conftest import make_dataset, silent, tiny

__all__ = ["silent", "small_problem", "tiny"]  # fixtures


@pytest.fixture(scope="session")
def small_problem():
    """24 labeled images, 40 unlabeled ones, 12 for testing."""
    return make_dataset(train=64, test=12, labeled=24)
