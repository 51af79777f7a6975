package node

import "golang.org/x/sys/unix"

// hostStorage is the size in bytes of the file system that dir is on, 0 if it cannot be told.
func hostStorage(dir string) int64 {
	var stat unix.Statfs_t
	if err := unix.Statfs(dir, &stat); err != nil {
		return 0
	}
	return int64(stat.Blocks) * int64(stat.Bsize) //nolint:unconvert // the types differ between systems
}
