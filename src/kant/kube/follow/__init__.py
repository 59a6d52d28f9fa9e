"""Copies of the objects of the API server, kept up to date by lists and watches."""
