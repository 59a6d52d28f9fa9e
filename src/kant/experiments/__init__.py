"""Experiments: many runs, each once; what they say together; whether a change of policy does harm."""
