package kit_test

import (
	"os"
	"testing"
	"time"

	"github.com/metacontroller-solo/solo/test/kit"
)

// A parent that is killed takes the control plane with it.
func TestNothingOutlivesAKilledParent(t *testing.T) {
	t.Parallel()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	parent := kit.Run(t, self, nil, roleEnv+"="+parentRole, dirEnv+"="+dir, kit.AssetsEnv+"="+os.Getenv(kit.AssetsEnv))
	parent.WaitLine(3*time.Minute, upLine)
	parent.Kill()
	unused(t, dir, 10*time.Second)
}
