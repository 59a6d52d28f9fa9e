"""What a replica serves over HTTP: probes, metrics, the page and its data."""
