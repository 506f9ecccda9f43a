"""Spans that components export, received and checked."""
