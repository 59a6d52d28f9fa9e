"""Kant in front of real inference engines: a proxy that routes, holds and scores requests as the simulator does."""
