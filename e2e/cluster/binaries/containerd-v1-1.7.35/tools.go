// SPDX-License-Identifier: Apache-2.0

//go:build tools

// Package binaries names the commands that go.mod pins.
package binaries

import (
	_ "github.com/containerd/containerd/cmd/containerd"
	_ "github.com/containerd/containerd/cmd/containerd-shim-runc-v2"
	_ "github.com/containerd/containerd/cmd/ctr"
)
