"""`make demo`: a cluster of simulated GPU nodes, the driver by helm, and pods that hold GPUs."""
