"""Templates for GPUs."""
