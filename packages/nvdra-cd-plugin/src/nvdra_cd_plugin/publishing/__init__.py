"""Channels and daemons as devices of ResourceSlices."""
