"""Property tests of the webhook have no deadline: tests also run on busy machines."""

from hypothesis import settings

settings.register_profile("nvdra-webhook", deadline=None)
settings.load_profile("nvdra-webhook")
