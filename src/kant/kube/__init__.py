"""Kant against a real Kubernetes cluster: what the API server says comes in as events, and plans go out as bindings."""
