"""One page about a run: what was learned, how good it is, and what it looks like; reads the run and trains nothing."""
