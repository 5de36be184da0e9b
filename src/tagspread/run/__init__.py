"""The record of a run: what it was trained on, how, and what came out; it can be read without training anything."""
