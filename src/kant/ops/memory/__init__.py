"""Replays of solved tasks: traces of tool calls, runbooks compiled from them, habits of tenants."""
