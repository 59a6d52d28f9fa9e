"""Duration of a training step: streams, pipeline degrees and the gaps in which gradients are summed."""
