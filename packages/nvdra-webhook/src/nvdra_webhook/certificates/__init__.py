# SPDX-License-Identifier: Apache-2.0
"""Where the server's key pair comes from: files, or a Secret that the replicas keep themselves."""
