# SPDX-License-Identifier: Apache-2.0
"""What real boards answer, recorded, and compared with the simulator."""
