"""GPUs and driver installations for tests."""
