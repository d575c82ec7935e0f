//go:build tools

// Package runc pins an OCI runtime that is newer than what distributions ship, with exactly the
// dependencies it was released with.
package runc

import (
	_ "github.com/opencontainers/runc"
)
