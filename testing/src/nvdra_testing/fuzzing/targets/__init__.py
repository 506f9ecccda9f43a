"""The targets, one module for each program or kind of file."""
