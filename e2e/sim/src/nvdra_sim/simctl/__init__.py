"""The command nvdra-simctl."""
