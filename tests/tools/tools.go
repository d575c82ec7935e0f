//go:build tools

// Package tools pins the peers that our end-to-end tests drive.
package tools

import (
	_ "sigs.k8s.io/cri-tools/cmd/crictl"
)
