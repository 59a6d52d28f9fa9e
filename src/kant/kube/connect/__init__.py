"""The connection to the API server: where it is, who we are there, one client, and what can go wrong."""
