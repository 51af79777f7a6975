package node

import "golang.org/x/sys/unix"

// hostMemory is the host's memory in bytes, 0 if it cannot be told.
func hostMemory() int64 {
	size, err := unix.SysctlUint64("hw.memsize")
	if err != nil {
		return 0
	}
	return int64(size)
}
