import pytest
import torch
from torch import nn

from tagspread.vision.dual_relation import DualRelation
from tagspread.vision.heads import LinearHead, MLDecoder
from tagspread.vision.patches import FourHeads


def decoder(channels=6, classes=5):
    torch.manual_seed(0)
    return MLDecoder(channels, classes, embedding=16, heads=4, hidden=24).eval()


def test_linear():
    head = LinearHead(6, 3)
    features = torch.randn(4, 6)
    torch.testing.assert_close(head(features), features @ head.weight.T + head.bias)
    assert not head.wants_map


@pytest.mark.parametrize("of", [LinearHead, DualRelation, FourHeads, MLDecoder])
def test_logits_are_not_rounded_where_the_network_below_is(of):
    """A ranking of many images needs more distinct numbers than bfloat16 has: 128 from 4 to 8."""
    torch.manual_seed(0)
    head = of(6, 3).eval()
    features = torch.randn({MLDecoder: (500, 6, 1, 1), FourHeads: (500, 5, 6)}.get(of, (500, 6)))
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        logits = head(features.bfloat16()).flatten(1)
        assert (torch.randn(5, 6) @ torch.randn(6, 3)).dtype == torch.bfloat16  # enabled again afterwards
    assert logits.dtype == torch.float32
    assert all(len(column.unique()) > 490 for column in logits.T)
    if of is not MLDecoder:  # its attention runs in reduced precision, like the backbone
        torch.testing.assert_close(logits, head(features.bfloat16().float()).flatten(1))


@pytest.mark.parametrize(("batch", "height", "width"), [(1, 1, 1), (3, 2, 4), (2, 6, 6)])
def test_shapes(batch, height, width):
    head, features = decoder(), torch.randn(batch, 6, height, width)
    assert head.wants_map
    assert head.embed(features).shape == (batch, 5, 16)
    assert head(features).shape == (batch, 5)


def test_sizes_of_the_paper():
    head = MLDecoder(32, 20)
    assert head.queries.shape == (20, 768)
    assert head(torch.randn(2, 32, 3, 3)).shape == (2, 20)


def test_logits_are_dot_products_of_embeddings():
    head, features = decoder(), torch.randn(3, 6, 2, 4)
    nn.init.normal_(head.bias)
    embedded, logits = head.embed(features), head(features)
    for i in range(3):
        for k in range(5):
            torch.testing.assert_close(logits[i, k], embedded[i, k] @ head.weight[k] + head.bias[k])


def test_attention_equals_the_formula():
    """Compute the decoder one query and one attention head at a time."""
    head, features = decoder(), torch.randn(2, 6, 2, 3)
    places = head.project(features.permute(0, 2, 3, 1).reshape(2, 6, 6))
    query = head.norm_query(head.queries)
    q, k, v = (
        x @ w.T + b
        for x, w, b in zip(
            (query, places, places), head.attention.in_proj_weight.chunk(3), head.attention.in_proj_bias.chunk(3),
            strict=True,
        )
    )  # fmt: skip
    for i in range(2):
        mixed = []
        for part in (slice(0, 4), slice(4, 8), slice(8, 12), slice(12, 16)):
            weight = (q[:, part] @ k[i, :, part].T / 4**0.5).softmax(1)
            mixed.append(weight @ v[i, :, part])
        attended = head.norm_attended(query + head.attention.out_proj(torch.cat(mixed, 1)))
        expected = head.norm_out(attended + head.feed_forward(attended))
        torch.testing.assert_close(head.embed(features)[i], expected, atol=1e-5, rtol=1e-5)


def test_places_have_no_order_and_images_do_not_mix():
    head, features = decoder(), torch.randn(3, 6, 2, 4)
    shuffled = features.flatten(2)[:, :, torch.randperm(8)].view(3, 6, 4, 2)
    torch.testing.assert_close(head(shuffled), head(features))
    torch.testing.assert_close(head(features[1:2]), head(features)[1:2])


def test_a_transformers_layouts():
    head, features = decoder(), torch.randn(3, 6, 2, 4)
    torch.testing.assert_close(head(features.permute(0, 2, 3, 1)), head(features))  # height x width x channels
    torch.testing.assert_close(head(features.flatten(2).transpose(1, 2)), head(features))  # tokens x channels


def test_gradients_reach_everything():
    head = decoder().train()
    head(torch.randn(3, 6, 2, 4)).square().sum().backward()
    for name, parameter in head.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
    for parameter in (head.queries, head.weight, head.bias):
        assert parameter.grad is not None
        assert (parameter.grad.view(5, -1) != 0).any(1).all()  # of every class
