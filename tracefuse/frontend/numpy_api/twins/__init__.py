"""What a clone calls in place of functions that never ask a traced value."""
