"""The tiny problem of the loop's own tests, and settings that end in about a second."""

import pytest

from tests.train.conftest import make_problem, silent, tiny

__all__ = ["silent", "small_problem", "tiny"]  # fixtures


@pytest.fixture(scope="session")
def small_problem():
    """24 labelled pictures, 40 in the pile, 12 to test on."""
    return make_problem(train=64, test=12, labelled=24)
