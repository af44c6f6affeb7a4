"""The captured state of a function: where each value comes from, and how a later call reads it again."""
