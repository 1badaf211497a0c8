"""How hypothesis runs for the core: without deadlines (sanitizers are slow), without files left behind.

HOLDMQ_TEST_EXAMPLES is the number of examples of a property that names none; `make test-quick` lowers it.
"""

import os

from hypothesis import HealthCheck, settings

settings.register_profile(
    "core",
    deadline=None,
    max_examples=int(os.environ.get("HOLDMQ_TEST_EXAMPLES", "150")),
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("core")
