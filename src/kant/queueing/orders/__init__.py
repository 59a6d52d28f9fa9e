"""The orders, one per file: frozen classes whose fields are their configuration. `kant policies` lists them."""
