"""Data: label tables, data splits, dataset readers, image stores and data checks."""
