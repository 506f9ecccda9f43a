"""pytest plugins of all tests."""

pytest_plugins = [
    "nvdra_testing.control_plane.pytest_plugin",
    "nvdra_testing.crash_campaigns.pytest_plugin",
    "nvdra_testing.durations",
]
