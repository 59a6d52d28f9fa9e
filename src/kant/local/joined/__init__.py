"""Machines that have joined: their runs, over a line with mutual TLS, as if they were here (docs/join.md)."""
