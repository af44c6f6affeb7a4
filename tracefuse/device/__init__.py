"""Devices: arrays, allocation and streams, of the GPU through CuPy and of the CPU through NumPy.

Must not know operations, fusions or kernels' bodies.
"""
