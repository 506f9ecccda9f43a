"""The command `nvdra-cdi`: each subcommand is a module, from arguments to an answer.

Nothing outside this package imports it.
"""
