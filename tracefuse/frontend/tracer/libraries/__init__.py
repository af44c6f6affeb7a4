"""Calls of functions and objects of installed packages in a trace."""
