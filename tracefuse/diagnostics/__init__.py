"""Explanations, logs, dumps, check mode and the configuration report."""
