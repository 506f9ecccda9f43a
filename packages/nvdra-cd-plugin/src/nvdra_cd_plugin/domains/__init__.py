"""ComputeDomains as the plugin reads them."""
