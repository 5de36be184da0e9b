"""No test asserts a time, not even by a default: busy machines are slow ones."""

from hypothesis import settings

settings.register_profile("no deadline", deadline=None)
settings.load_profile("no deadline")
