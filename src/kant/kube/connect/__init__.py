"""The connection to the API server: its address, Kant's credentials, a client, and errors."""
