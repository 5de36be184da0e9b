"""Label tables: which image carries which tags, read from the files people have."""
