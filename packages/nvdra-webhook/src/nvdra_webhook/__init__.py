# SPDX-License-Identifier: Apache-2.0
"""The admission webhook of claims and claim templates with opaque configs of both drivers."""
