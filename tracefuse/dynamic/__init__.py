"""What depends on the sizes and layouts of a call: guards, concretizations, and why another plan was needed."""
