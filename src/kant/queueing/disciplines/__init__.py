"""One file a discipline: a small frozen class whose fields are its configuration. `kant policies` lists them."""
