"""GAR, SOR, GFR, JWTD, JTTED and their statistics: the same folds for live and simulated runs."""
