"""Pure functions on arrays: thresholds, losses, metrics, calibration, intervals.

Functions take numpy arrays or torch tensors and return the same kind, on the same device. They read no files, choose no
device and never change their arguments in place.
"""
