# SPDX-License-Identifier: Apache-2.0
"""Export of spans and metrics over OTLP."""
