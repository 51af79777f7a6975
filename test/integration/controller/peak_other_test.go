//go:build !linux

package controller_test

import "testing"

// peakMemory is only known on Linux.
func peakMemory(*testing.T, int) int { return 0 }
