"""What was once solved is replayed: traces of tool calls, runbooks that are compiled from them, habits of tenants."""
