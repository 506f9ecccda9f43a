"""CDI specs of claims."""
