# SPDX-License-Identifier: Apache-2.0
"""What makes a lab's cluster: this machine (`local`), kind (`kind`), somebody else (`existing`)."""
