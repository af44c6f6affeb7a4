"""Kernels: a small structured loop language, its emitters, its interpreter and its compilers.

Knows loops, memory and scalars. Must not know operations, fusions or arrays of a user.
"""
