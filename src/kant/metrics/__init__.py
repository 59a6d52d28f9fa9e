"""The metrics GAR, SOR, GFR, JWTD and JTTED (docs/metrics.md) and their statistics, for live and simulated runs."""
