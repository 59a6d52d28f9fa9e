"""This machine as a cluster: processes with their GPUs made visible to them, each under a supervisor of its own."""
