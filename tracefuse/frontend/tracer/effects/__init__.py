"""What a traced function asks, prints, logs and raises."""
