"""The crash campaign: kill a real process before each call with which it changes something.

`run` does all strikes of an operation, `outcomes` is what it found, `report` tells; `points` says
which calls count. The GPU plugin's campaign is `on_nodes`: `lane` is a node to do it on, `findings`
what is on it, `operations` what is done there and what must be true afterwards, `strike` does it
once. The controller's is `on_domains`, with `cd_lane`, `cd_operations` and `cd_strike`; `requests`
reads its calls. `stages` and `books` are for the plugin's property test: lanes for tests that are
not asynchronous, and the model that a node must agree with.
"""
