"""What explains: why a job waits, when it is expected to start, what would help, and why it is where it is."""
