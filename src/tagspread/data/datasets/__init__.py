"""Data sets known by name, in their own layouts."""
