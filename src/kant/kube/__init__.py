"""Kant on a real Kubernetes cluster: changes of API objects become events, and plans become bindings."""
