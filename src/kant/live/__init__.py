"""What every live driver has: the core with its clock, journals, log lines, and answers about jobs and queues."""
