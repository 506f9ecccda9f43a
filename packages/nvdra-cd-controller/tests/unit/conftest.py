"""Property tests of the controller have no deadline: tests also run on busy machines."""

from hypothesis import settings

settings.register_profile("nvdra-cd-controller", deadline=None)
settings.load_profile("nvdra-cd-controller")
