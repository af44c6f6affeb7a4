"""What runs a segmented fusion: plans, host programs, and the Python code of a call."""
