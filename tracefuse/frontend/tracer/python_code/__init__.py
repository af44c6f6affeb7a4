"""What the code of a function tells before it runs, and the other code that a trace runs in its place."""
