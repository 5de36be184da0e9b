"""Default image size of each backbone.

Networks are trained on random crops, in which objects look larger than in whole images. Whole images at a resolution
somewhat above the training resolution compensate for this, and small objects stay visible. On VOC, 288 instead of 224
pixels raise mAP by 2.6 points for ``tf_efficientnet_lite2`` (docs/benchmarks.md).
"""

from __future__ import annotations

SMALLEST = 16  # pixels: smaller images are refused
LARGEST = 2048  # larger ones too: a batch of them takes gigabytes of memory
LEAST = 288  # the default, and the minimum for networks without a fixed size
MORE = 1.1  # factor on the resolution that a network was trained at
STEP = 32  # sizes are multiples of it: convolutional networks halve the resolution five times


def accepts_any_size(backbone: str) -> bool:
    """Return whether a backbone accepts images of any size; most vision transformers do not.

    >>> [accepts_any_size(name) for name in ("resnet50", "tf_efficientnet_lite4", "vit_tiny_patch16_224")]
    [True, True, False]
    """
    if backbone in ("resnet50", "resnet50_v1", "small"):
        return True
    import timm

    pretrained = timm.get_pretrained_cfg(backbone) if timm.is_model(backbone) else None
    return pretrained is None or not pretrained.fixed_input_size


def default_image_size(backbone: str) -> int:
    """Return the image side to use for a backbone; for a network of fixed input size, that size.

    >>> [default_image_size(name) for name in ("resnet50", "tf_efficientnet_lite4", "vit_tiny_patch16_224")]
    [288, 448, 224]
    """
    if backbone in ("resnet50", "resnet50_v1"):
        return LEAST
    if backbone == "small":
        return 224  # trains from scratch, so there is no training resolution to exceed
    import timm  # takes as long to import as torch, so it is imported only where needed

    pretrained = timm.get_pretrained_cfg(backbone) if timm.is_model(backbone) else None
    if pretrained is None:
        return LEAST
    trained = int(pretrained.input_size[-1])
    if pretrained.fixed_input_size:
        return trained
    return max(LEAST, -(-round(MORE * trained) // STEP) * STEP)
