"""Small computations use one thread; the caller's number of threads is restored, whatever happens."""

import threading

import pytest
import torch

from tagspread.core.threads import SMALL, threads_for
from tagspread.linear.logistic import LogisticHead


@pytest.fixture(autouse=True)
def three_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


def test_small_work_uses_one_thread_and_large_work_all():
    with threads_for(SMALL):
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == 3
    with threads_for(SMALL + 1):
        assert torch.get_num_threads() == 3


def test_restored_after_an_error_and_when_nested():
    with pytest.raises(ZeroDivisionError), threads_for(1), threads_for(1):
        _ = 1 / 0
    assert torch.get_num_threads() == 3


def test_a_python_thread_that_starts_during_a_limit_is_not_limited_afterwards():
    entered, leave, seen = threading.Event(), threading.Event(), []

    def other():
        with threads_for(1), threads_for(1):
            seen.append(torch.get_num_threads())
            entered.set()
            leave.wait(10)
            seen.append(torch.get_num_threads())
        seen.append(torch.get_num_threads())

    thread = threading.Thread(target=other)
    with threads_for(1):
        thread.start()
        entered.wait(10)
    assert torch.get_num_threads() == 3  # whatever the other one still needs
    leave.set()
    thread.join()
    assert seen == [1, 1, 3]
    assert torch.get_num_threads() == 3


def test_small_fits_use_one_thread(monkeypatch):
    from tagspread.linear import logistic
    from tagspread.linear.heads import DenseRows, Part

    seen = []
    original = logistic.gradient

    def watched(*arguments):
        seen.append(torch.get_num_threads())
        return original(*arguments)

    monkeypatch.setattr(logistic, "gradient", watched)
    head, x = LogisticHead(), torch.tensor([[-1.0], [1.0]])
    start = head.start(1, 1, torch.device("cpu"))
    head.fit([Part(DenseRows(x), torch.tensor([[0], [1]]))], start, 0.1)
    assert set(seen) == {1}
    assert torch.get_num_threads() == 3
