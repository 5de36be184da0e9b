"""From a run to tags: load it, stream images through it, write tables."""
