# SPDX-License-Identifier: Apache-2.0
"""The parts of the plugin, open for as long as it runs. `app` opens them in order."""
