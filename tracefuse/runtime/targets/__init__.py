"""Targets: the templates, the kernel compiler, the device, the library and the texts of calls of each."""
