"""The ledger of a run: what each picture of the pile was taken for, how surely, and how it changed."""
