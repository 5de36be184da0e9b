"""From a run to tags: load it, stream pictures through it, write tables."""
