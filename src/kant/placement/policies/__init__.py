"""One file a policy: a small frozen class whose fields are its configuration. `kant policies` lists them."""
