"""Simulated inference engines: continuous batching over a paged KV cache, request by request."""
