"""What a replica serves over HTTP: probes, metrics, the web page and its data."""
