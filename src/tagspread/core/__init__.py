"""Pure functions on arrays: no files, no devices chosen, no configuration.

numpy in, numpy out; torch in, torch out on the same device. Nothing is ever changed in place.
"""
