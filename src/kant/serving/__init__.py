"""Simulated inference engines: continuous batching over paged KV, request by request."""
