"""Images: find, decode, cache and store them."""
