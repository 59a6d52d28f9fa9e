"""Replays solved tasks: traces of tool calls, and runbooks compiled from traces."""
