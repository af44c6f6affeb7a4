"""What all functions share: the table that names them, axes of cores, the order and memory of results."""
