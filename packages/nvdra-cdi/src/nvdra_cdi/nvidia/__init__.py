"""What a container needs to use NVIDIA GPUs, MIG devices and IMEX channels, as CDI edits.

`generator` is the way in. Stands in for the NVIDIA container toolkit's modes `nvml`, `imex` and
`management` (behaviour of 1.20.1).
"""
