"""API objects of Kubernetes, reduced to the fields that Kant reads, with their quantities, times and validation."""
