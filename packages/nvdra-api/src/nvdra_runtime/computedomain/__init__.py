"""Code shared by the controller, the plugin and the daemon of ComputeDomains."""
