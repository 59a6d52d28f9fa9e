"""Inference engines and the requests that they serve: continuous batching over paged KV, request by request."""
