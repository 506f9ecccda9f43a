# SPDX-License-Identifier: Apache-2.0
"""Generated and mutated bytes for whatever reads those of others: `make fuzz`."""
