import pytest
import torch

from tagspread.data.modality import FeatureModality, ImageModality, modality_of


def test_images_have_views_and_a_mirror_image():
    modality = modality_of((3, 2, 2))
    assert modality == ImageModality((3, 2, 2))
    assert modality.has_views
    batch = torch.arange(12).reshape(1, 3, 2, 2)
    assert modality.mirror(batch)[0, 0].tolist() == [[1, 0], [3, 2]]


@pytest.mark.parametrize("shape", [(8,), (2, 8)])
def test_features_have_no_views(shape):
    modality = modality_of(shape)
    assert modality == FeatureModality(shape)
    assert not modality.has_views
    batch = torch.arange(16).reshape(-1, *shape)
    assert modality.mirror(batch) is batch


def test_the_cpu_batch_size_shrinks_with_the_image_size():
    cpu, gpu = torch.device("cpu"), torch.device("cuda")
    large, small = ImageModality((3, 1000, 1000)), ImageModality((3, 8, 8))
    assert large.suitable_batch(cpu) < small.suitable_batch(cpu) < FeatureModality((8,)).suitable_batch(cpu)
    assert large.suitable_batch(gpu) == small.suitable_batch(gpu) == FeatureModality((8,)).suitable_batch(gpu)
