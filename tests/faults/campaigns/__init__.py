"""Campaigns of faults and bad input: seeded cases, each run in a process of its own and judged from outside.

:mod:`harness` runs a case and judges it, :mod:`world` makes the images and runs that cases damage, :mod:`mutate`
damages bytes, values and tensors. One file per campaign makes the cases. ``tests/faults/test_campaigns.py`` runs a few
cases of each; ``make soak`` (:mod:`soak`) runs all of them and prints a table.
"""
