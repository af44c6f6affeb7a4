"""Scheduling: which nodes one kernel can hold (the merge rule), and how that kernel's loops are laid out.

Knows the five kinds of op, index maps and kernel IR. Must not know arrays, devices or frontends.
"""
