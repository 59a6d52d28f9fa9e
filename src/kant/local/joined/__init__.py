"""Machines that have joined Kant: jobs run on them as on the local machine, over mutual TLS (docs/join.md)."""
