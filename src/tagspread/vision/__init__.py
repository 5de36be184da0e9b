"""Image augmentation, backbones, classification heads and pretrained weights."""
