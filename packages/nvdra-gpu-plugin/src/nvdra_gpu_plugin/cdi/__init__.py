"""CDI specs of the node's GPUs."""
