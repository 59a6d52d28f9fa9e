"""Simulated time: the driver that runs the core against a workload instead of a cluster."""
