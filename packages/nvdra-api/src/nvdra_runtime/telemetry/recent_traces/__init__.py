"""The most recent traces of this process, for its debug endpoint."""
