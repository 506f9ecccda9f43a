# SPDX-License-Identifier: Apache-2.0
"""Property tests have no deadline: a busy machine makes no example wrong. A pytest plugin."""

from hypothesis import settings

settings.register_profile("nvdra", deadline=None)
settings.load_profile("nvdra")
