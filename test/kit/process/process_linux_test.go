package process_test

import (
	"syscall"
	"testing"
)

// Nothing outlives a parent that had no chance to clean up.
func TestChildDiesWithItsKilledParent(t *testing.T) {
	parent, child := role(t, "parent")
	if err := syscall.Kill(parent.Pid(), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	untilGone(t, child)
}
