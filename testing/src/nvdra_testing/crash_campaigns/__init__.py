# SPDX-License-Identifier: Apache-2.0
"""Crash campaigns: kill a real process before each call with which it changes something outside.

- `runner` records an operation and strikes at its calls, `selection` says at which, `golden_points`
  lists the calls that are known; `points` decides which calls count, `outcomes` are the results,
  and `report` writes them.
- The plugins: `plugin_campaign`, on nodes of `plugin_sandbox`; `plugin_operations` (GPUs) and
  `domain_operations` are what is interrupted, `plugin_strikes` one interrupted run, `kubelet_calls`
  and `node_checks` what must be true of answers and of the node.
- The controller: `controller_campaign`, `controller_sandbox`, `controller_operations` and
  `controller_strikes`; `traced_requests` and `api_writes` read its requests.
- The IMEX daemon: `daemon_campaign`, `daemon_sandbox`, `daemon_operations` and `daemon_strikes`;
  `daemon_calls` reads its calls, `daemon_checks` is what must be true of its node.
- `threaded_sandboxes` and `claim_model` are for the plugin's property test.
"""
