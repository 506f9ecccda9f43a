// SPDX-License-Identifier: Apache-2.0

//go:build tools

// Package binaries names the commands that go.mod pins.
package binaries

import (
	_ "github.com/NVIDIA/nvidia-container-toolkit/cmd/nvidia-ctk"
	_ "github.com/NVIDIA/nvidia-container-toolkit/cmd/nvidia-cdi-hook"
)
