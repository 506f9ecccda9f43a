# SPDX-License-Identifier: Apache-2.0
"""pytest plugins of all tests."""

pytest_plugins = [
    "nvdra_testing.control_plane.pytest_plugin",
    "nvdra_testing.crash_campaigns.pytest_plugin",
    "nvdra_testing.durations",
    "nvdra_testing.failures_at_once",
    "nvdra_testing.property_tests",
    "nvdra_testing.report_texts",
    "nvdra_testing.soaks",
]
