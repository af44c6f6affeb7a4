"""What a traced function sees in place of the state around it, and the writes that later calls make."""
