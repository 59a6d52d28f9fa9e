"""This machine as a cluster: each job runs as a process that sees only its own GPUs, under its own supervisor."""
