"""Explanations: why a job waits, when it is expected to start, what would help, and why it runs where it does."""
