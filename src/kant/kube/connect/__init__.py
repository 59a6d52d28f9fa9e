"""The connection to the API server: its address, our identity, one client, and its errors."""
