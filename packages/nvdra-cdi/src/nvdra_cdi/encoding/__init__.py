"""Reading and writing of CDI documents as YAML and JSON, below `codec`."""
