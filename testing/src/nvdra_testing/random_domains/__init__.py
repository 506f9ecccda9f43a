# SPDX-License-Identifier: Apache-2.0
"""ComputeDomains that come and go at random in a lab; did their status say what was true?"""
