"""Generated and mutated bytes for whatever reads those of others: `make fuzz`."""
