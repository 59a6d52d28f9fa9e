"""The difference between the state of the API server and that of the core, as events for the core."""
