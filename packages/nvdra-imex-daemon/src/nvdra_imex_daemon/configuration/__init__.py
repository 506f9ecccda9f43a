"""The files that nvidia-imex reads."""
