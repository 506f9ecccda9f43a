"""What is wrong with GPUs that are there: XIDs, recovery actions, losses; as taints that heal."""
