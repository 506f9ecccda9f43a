"""Every flag of this component; the only description of them.

`process.settings.load` fills the model once from flags and environment; nothing else reads them.
Names and defaults are the reference's, except where docs/decisions.md says otherwise.
"""
