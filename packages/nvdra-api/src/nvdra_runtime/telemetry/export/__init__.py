"""Export of spans and metrics over OTLP."""
