"""From files to arrays: tables, splits, the image store."""
