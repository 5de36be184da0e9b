"""Check a label table and its images before training."""
