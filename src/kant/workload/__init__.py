"""Traces, generators and run-time models: what arrives, when, and how long it would run."""
