"""Benchmarks: train a grid of methods, labeled shares and seeds, and write the paper's tables and charts."""
