"""Prediction, evaluation and embeddings: load a run, stream images through it, write tables."""
