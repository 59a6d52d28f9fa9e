"""Traces, generators and run-time models: which jobs arrive, when, and how long they run."""
