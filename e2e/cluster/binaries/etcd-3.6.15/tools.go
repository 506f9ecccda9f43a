// SPDX-License-Identifier: Apache-2.0

//go:build tools

// Package binaries names the commands that go.mod pins.
package binaries

import (
	_ "go.etcd.io/etcd/server/v3"
)
