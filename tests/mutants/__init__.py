# SPDX-License-Identifier: Apache-2.0
"""Mutants: faults that are put into a copy of the code, each of which named tests must notice.

`mutant` says what a mutant is, one module for each package lists them, `scratch_tree` makes the
copy, `runner` runs the tests. `python -m tests.mutants --help` explains the command, which
`make soak` runs.
"""
