"""Trials to numbers: pure functions, no clocks, no files, nothing outside the standard library."""
