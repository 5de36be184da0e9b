"""How large a network likes its images.

In training, networks see random crops, in which things look larger than in whole images; whole images that are
somewhat larger than the crops make up for it, and small things stay visible. On VOC, 288 instead of 224 pixels are
worth 2.7 mAP for ``tf_efficientnet_lite2`` (docs/benchmarks.md).
"""

from __future__ import annotations

SMALLEST = 16  # pixels: in fewer there is nothing to see
LEAST = 288
MORE = 1.1  # than in training
STEP = 32  # by which convolutional networks halve five times


def default_image_size(backbone: str) -> int:
    """Return the side to which images are best resized for a network; where it has no choice, its own.

    >>> [default_image_size(name) for name in ("resnet50", "tf_efficientnet_lite4", "vit_tiny_patch16_224")]
    [288, 448, 224]
    """
    if backbone in ("resnet50", "resnet50_v1"):
        return LEAST
    if backbone == "small":
        return 224  # trains from scratch: nothing was learnt at another size
    import timm  # takes as long to import as torch itself, so only where it is needed

    known = timm.get_pretrained_cfg(backbone) if timm.is_model(backbone) else None
    if known is None:
        return LEAST
    trained = int(known.input_size[-1])
    if known.fixed_input_size:
        return trained
    return max(LEAST, -(-round(MORE * trained) // STEP) * STEP)
