"""Data: label tables, data splits, data set readers, image stores and data checks."""
