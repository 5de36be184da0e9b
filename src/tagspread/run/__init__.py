"""Run folders: configuration, split, checkpoint, pseudo-labels and ``labels.json``, read without training anything."""
