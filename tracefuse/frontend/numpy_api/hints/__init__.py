"""What to write in place of functions and methods that take no traced arrays."""
