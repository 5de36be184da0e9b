"""Helpers shared by the method tests: random problems, a literal sort, and runs that are interrupted and resumed."""

import math
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from safetensors.torch import load_file

from tagspread.methods import Labeled
from tagspread.train import loop
from tagspread.train.interrupts import Interrupted, StopSignal
from tagspread.train.trainer import RunOptions, run_training


def named(classes):
    return tuple(f"tag {k}" for k in range(classes))


@st.composite
def problems(draw):
    """Draw logits with many ties, unlabeled sets from one row on, and labels with unknown entries and empty classes."""
    rows, classes = draw(st.integers(1, 12)), draw(st.integers(1, 6))
    elements = draw(
        st.sampled_from([st.sampled_from([-1.0, -0.0, 0.0, 2.0]), st.floats(-9, 9, width=32), st.just(0.5)])
    )
    scores = draw(hnp.arrays(np.float32, (rows, classes), elements=elements))
    labels = st.sampled_from(draw(st.sampled_from([(0, 1), (-1, 0, 1), (-1, 0), (0, 1, 1, 1)])))
    y = draw(hnp.arrays(np.int8, (draw(st.integers(1, 9)), classes), elements=labels))
    y[0, 0] = draw(st.integers(0, 1))  # something is known
    return torch.from_numpy(scores), Labeled(torch.from_numpy(y), named(classes))


def highest(scores, count):
    """Sort with Python: highest score first, lower class first among equals."""
    expected = np.zeros(scores.shape, dtype=np.int8)
    for j, row in enumerate(scores.tolist()):
        for k in sorted(range(len(row)), key=lambda k: (-row[k], k))[:count]:
            expected[j, k] = 1
    return expected


def probabilities(scores):
    """Return float32 probabilities as plain lists."""
    return scores.sigmoid().tolist()


def in_single_precision(number):
    return float(np.float32(number))


def logit(*shares):
    return torch.tensor([math.log(p / (1 - p)) for p in shares])


def saved(run_folder):
    """Load all tensors of a run's checkpoint."""
    return load_file(run_folder / "checkpoint" / "state.safetensors")


def assert_same(one, other):
    """Check that all tensors are equal by name, bit for bit."""
    assert one.keys() == other.keys()
    for name in one:
        assert torch.equal(one[name], other[name]), name


@contextmanager
def stopped(after, monkeypatch):
    """Interrupt training after ``after`` steps, inside this context."""
    steps = 0

    class StopAfter(StopSignal):
        @property
        def received(self):
            nonlocal steps
            steps += 1
            return steps == after

        @received.setter
        def received(self, value):
            pass

    with monkeypatch.context() as patch, pytest.raises(Interrupted):  # noqa: PT012 (whatever is inside)
        patch.setattr(loop, "StopSignal", StopAfter)
        yield


def train_in_two_parts(dataset, config, out, after, watcher, monkeypatch):
    """Train for ``after`` steps, interrupt, and resume until the end."""
    with stopped(after, monkeypatch):
        run_training(dataset, config, out, watcher=watcher)
    return run_training(dataset, config, out, RunOptions(resume=True), watcher=watcher)
