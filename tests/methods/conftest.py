"""The tiny dataset of the loop's own tests, and settings that end in about a second."""

import pytest

from tests.train.conftest import make_dataset, silent, tiny

__all__ = ["silent", "small_problem", "tiny"]  # fixtures


@pytest.fixture(scope="session")
def small_problem():
    """24 labeled images, 40 in the unlabeled set, 12 to test on."""
    return make_dataset(train=64, test=12, labeled=24)
