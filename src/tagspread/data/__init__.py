"""From files to arrays: tables, splits, the picture store."""
