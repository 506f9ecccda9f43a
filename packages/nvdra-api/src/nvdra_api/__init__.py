"""What nvdra components share: API types, protocols, and the way to the outside world."""
