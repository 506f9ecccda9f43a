"""GPUs as devices of ResourceSlices."""
