"""What a container needs to use an NVIDIA GPU, as CDI edits.

`generator` is the way in. Stands in for the NVIDIA container toolkit's `nvml` mode (behaviour of
1.20.1), for whole GPUs.
"""
