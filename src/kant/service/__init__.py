"""Kant as a service: the store, the daemon, the API over HTTP and its client."""
