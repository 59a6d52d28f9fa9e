"""The difference between what the API server says and what the core knows, as events for the core."""
