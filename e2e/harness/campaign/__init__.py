"""The crash campaign: kill the real plugin before each call with which it changes something.

`points` says which calls those are, `lane` is a node to do it on, `findings` what is on it,
`operations` what is done there and what must be true afterwards, `strike` does it once, `run` does
it all, `report` tells. `stages` and `books` are for the property test: lanes for tests that are not
asynchronous, and the model that a node must agree with.
"""
