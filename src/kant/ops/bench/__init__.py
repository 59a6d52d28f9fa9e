"""The verified suite: operations tasks on simulated clusters, judged by the final state of the cluster."""
