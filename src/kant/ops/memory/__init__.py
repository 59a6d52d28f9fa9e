"""Solved tasks are replayed: traces of tool calls, runbooks compiled from them, habits of tenants."""
