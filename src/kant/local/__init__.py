"""This machine as a cluster: runs each job as a process that sees only its own GPUs, under its own supervisor."""
