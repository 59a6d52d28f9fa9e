"""How long a training step takes: streams, pipeline degrees and the gaps where gradients are summed."""
