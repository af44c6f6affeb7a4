"""Targets: the templates, kernel compiler, device, array library and call texts of each."""
