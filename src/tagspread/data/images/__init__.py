"""Image files: find, decode, cache, store, and detect duplicates."""
