"""Where the server's key pair comes from: files, or a Secret that the replicas keep themselves."""
