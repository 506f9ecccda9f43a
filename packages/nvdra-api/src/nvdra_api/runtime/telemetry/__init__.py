"""One story per claim, told in four places: its trace, the log, the metrics and the debug page.

Extra "telemetry". Events are `runtime.kube`'s; names are `types.keys`; which trace a claim has is
`protocol.identity`. Source: spec/tracing.md.
"""
