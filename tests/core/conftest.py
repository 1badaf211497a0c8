"""How hypothesis runs for the core: without deadlines (sanitizers are slow), without files left behind."""

from hypothesis import HealthCheck, settings

settings.register_profile(
    "core", deadline=None, max_examples=150, database=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("core")
