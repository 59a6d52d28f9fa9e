"""What every live driver holds: the core with its clock, journals, log lines, and answers about jobs and queues."""
