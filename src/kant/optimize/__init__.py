"""Models for solvers: what a solver can prove, repair and plan. No cycle of the core waits for a solver."""
