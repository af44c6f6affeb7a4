"""What is said and shown of traces, plans and calls: explanations, logs, dumps, checks."""
