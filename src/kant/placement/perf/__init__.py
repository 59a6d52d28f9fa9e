"""Duration of a training step: streams, the degrees of its layers, and the gaps in which gradients are summed."""
