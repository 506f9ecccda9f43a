"""nvidia-imex as a child process, and its readiness."""
