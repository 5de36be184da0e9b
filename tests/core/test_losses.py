import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional

import tagspread as ts

from . import reference

LOSSES = [ts.bce_loss, ts.asl_loss]


def logit(f):
    return torch.tensor([[np.log(f / (1 - f))]], dtype=torch.float64)


def test_asl_vectors():
    assert ts.asl_loss(logit(0.5), torch.tensor([[1]])).item() == pytest.approx(0.693147, abs=1e-6)
    assert ts.asl_loss(logit(0.5), torch.tensor([[0]])).item() == pytest.approx(0.024515, abs=1e-6)
    easy = logit(0.04).requires_grad_()
    loss = ts.asl_loss(easy, torch.tensor([[0]]))
    loss.backward()
    assert loss.item() == 0
    assert easy.grad is not None
    assert easy.grad.item() == 0


@given(
    f=st.floats(0.001, 0.999),
    y=st.sampled_from([0, 1]),
    gamma_pos=st.floats(0, 3),
    gamma_neg=st.floats(0, 5),
    margin=st.sampled_from([0.0, 0.05, 0.3]),
)
def test_asl_equals_its_formula(f, y, gamma_pos, gamma_neg, margin):
    found = ts.asl_loss(logit(f), torch.tensor([[y]]), gamma_pos, gamma_neg, margin).item()
    assert found == pytest.approx(reference.asl(f, y, gamma_pos, gamma_neg, margin), rel=1e-6, abs=1e-12)


def test_asl_without_focus_or_margin_is_bce_and_bce_is_torch():
    logits, targets = torch.randn(6, 4), torch.randint(0, 2, (6, 4))
    expected = functional.binary_cross_entropy_with_logits(logits, targets.float(), reduction="sum")
    torch.testing.assert_close(ts.bce_loss(logits, targets), expected)
    torch.testing.assert_close(ts.asl_loss(logits, targets, 0, 0, 0), expected)


def test_focal_weight_is_a_constant_for_the_gradient():
    z = torch.tensor([[0.3, -0.2]], dtype=torch.float64, requires_grad=True)
    ts.asl_loss(z, torch.tensor([[1, 0]]), gamma_pos=1.0, margin=0.0).backward()
    f = z.detach().sigmoid()
    expected = torch.stack([-(1 - f[0, 0]) * (1 - f[0, 0]), f[0, 1] ** 4 * f[0, 1]])
    torch.testing.assert_close(z.grad, expected[None])


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("margin", [0.0, 0.05])
def test_finite_for_extreme_logits(loss, dtype, margin):
    options = {"margin": margin} if loss is ts.asl_loss else {}
    for size in (30, 100):
        z = torch.tensor([[size, -size]], dtype=dtype).repeat(2, 1).requires_grad_()
        value = loss(z, torch.tensor([[1, 1], [0, 0]]), **options)
        value.backward()
        assert value.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
        assert torch.isfinite(value)
        assert z.grad is not None
        assert torch.isfinite(z.grad).all()


@pytest.mark.parametrize("loss", LOSSES)
def test_computed_in_float32_inside_autocast(loss):
    z, y = torch.randn(64, 5).bfloat16(), torch.randint(0, 2, (64, 5))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        value = loss(z, y)
    torch.testing.assert_close(value, loss(z.float(), y))


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("how", ["target", "weight"])
@pytest.mark.parametrize("rubbish", [0.0, float("inf"), float("nan")])
def test_ignored_entries_contribute_nothing(loss, how, rubbish):
    z = torch.tensor([[0.7, rubbish]], requires_grad=True)
    y = torch.tensor([[1, -1]]) if how == "target" else torch.tensor([[1, 0]])
    w = None if how == "target" else torch.tensor([[1.0, 0.0]])
    alone = loss(torch.tensor([[0.7]]), torch.tensor([[1]]))
    for reduction in ("sum", "mean"):
        torch.testing.assert_close(loss(z, y, weight=w, reduction=reduction), alone)
    assert loss(z, y, weight=w, reduction="none")[0, 1] == 0
    loss(z, y, weight=w).backward()
    assert z.grad is not None
    assert z.grad[0, 1] == 0
    assert torch.isfinite(z.grad).all()


@pytest.mark.parametrize("loss", LOSSES)
def test_reductions_and_weights(loss):
    z, y = torch.randn(5, 3), torch.tensor([[1, 0, -1]] * 5)
    entries = loss(z, y, reduction="none")
    torch.testing.assert_close(loss(z, y), entries.sum())
    torch.testing.assert_close(loss(z, y, reduction="mean"), entries.sum() / 10)
    row = torch.tensor([[1.0], [2.0], [0.0], [0.5], [1.0]])
    torch.testing.assert_close(loss(z, y, weight=row), (entries * row).sum())
    torch.testing.assert_close(loss(z, y, weight=row, reduction="mean"), (entries * row).sum() / (2 * row.sum()))
    assert loss(z, torch.full_like(y, -1), reduction="mean") == 0  # no known label: 0, not NaN
    # soft targets mix both losses
    half = loss(z, torch.full_like(z, 0.5))
    torch.testing.assert_close(half, (loss(z, torch.ones_like(z)) + loss(z, torch.zeros_like(z))) / 2)


def test_gradient_mode_is_left_alone():
    with torch.no_grad():
        ts.asl_loss(torch.zeros(1, 1), torch.ones(1, 1))
        assert not torch.is_grad_enabled()


Z, Y = torch.zeros(2, 3), torch.zeros(2, 3)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"targets": torch.zeros(3, 2)}, r"logits have shape \(2, 3\) but targets \(3, 2\)"),
        ({"targets": Y + 2}, r"targets hold 2.0 at \(0, 0\)"),
        ({"targets": Y * float("nan")}, "targets hold nan"),
        ({"targets": [[0, 0, 0]] * 2}, "targets is a list; give a torch tensor"),
        ({"weight": torch.ones(7)}, r"weight has shape \(7,\)"),
        ({"reduction": "avg"}, "reduction is 'avg'; it must be one of 'sum', 'mean', 'none'"),
    ],
)
def test_bad_input(loss, arguments, words):
    with pytest.raises(ValueError, match=words):
        loss(Z, **{"targets": Y, **arguments})


@pytest.mark.parametrize("arguments", [{"gamma_neg": -1}, {"margin": 1.0}, {"margin": -0.1}])
def test_bad_asl_settings(arguments):
    with pytest.raises(ValueError, match=r"gamma_neg is -1|margin is"):
        ts.asl_loss(Z, Y, **arguments)
