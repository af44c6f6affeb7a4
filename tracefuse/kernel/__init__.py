"""The kernel language: its statements and primitives, readable text, emitters, interpreter, compilers and caches."""
