"""The verified suite: tasks of operations on simulated clusters, judged by the state that is left and not by words."""
