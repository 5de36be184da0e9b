"""Training: configuration, one readable loop, averaging, checkpoints."""
