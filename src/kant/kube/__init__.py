"""Kant on a real Kubernetes cluster: changes of API objects come in as events, and plans go out as bindings."""
