# SPDX-License-Identifier: Apache-2.0
"""Benchmarks of the installed plugin and of compute domains: `python -m bench`, or `make bench`.

The results go to `results.json` and `RESULTS.md` in this directory. `PROFILE.md` explains where the
time goes. Benchmarks are not tests: a slow machine fails none.
"""
