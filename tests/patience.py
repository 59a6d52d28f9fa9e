"""How long tests wait for what has to come, in seconds: so long that no busy machine is too slow for it.

It costs nothing where the thing comes, and KANT_PATIENCE_S=20 shows sooner that it does not. No test asserts that
anything took less than a time: it asserts the cause.
"""

import os

PATIENCE_S = float(os.environ.get("KANT_PATIENCE_S", "180"))
