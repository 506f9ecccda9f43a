# SPDX-License-Identifier: Apache-2.0
"""What is wrong with GPUs that are there: XIDs, recovery actions, losses; as taints that heal."""
