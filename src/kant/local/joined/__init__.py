"""Machines that have joined: runs jobs on them as if they were local, over mutual TLS (docs/join.md)."""
