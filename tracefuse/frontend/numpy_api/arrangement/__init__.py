"""Functions that move elements, or change axes and shapes."""
