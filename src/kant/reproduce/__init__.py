"""Code that only serves to reproduce published simulators: their disciplines, and how jobs run in them.

No module imports this package unless a profile asks for it. The registry finds its disciplines, and the simulator its
speed model, by name.
"""
