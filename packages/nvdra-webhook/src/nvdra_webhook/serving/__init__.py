"""The HTTPS server, which does not know what is asked of it."""
