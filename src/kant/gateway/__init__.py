"""Kant in front of real inference engines: a proxy that routes, holds and orders requests as the simulator does."""
