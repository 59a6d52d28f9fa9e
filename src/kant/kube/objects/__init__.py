"""API objects of Kubernetes as slim views, with their quantities, times and validation rules."""
