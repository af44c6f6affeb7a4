"""Templates for the CPU."""
