"""Reductions, scans, sorts, quantiles and counts."""
