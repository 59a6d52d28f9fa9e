"""Turns the objects of the API server, and their changes, into events for the core."""
