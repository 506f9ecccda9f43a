# SPDX-License-Identifier: Apache-2.0
"""Everything that happens to a node in a week, while pods come and go, and what became of the pods.

`runner` runs it in a lab, `incidents` are what happens, `verdict` judges what `history` recorded.
"""
