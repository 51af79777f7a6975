//go:build !linux

package process

import "syscall"

// attributes put the process in a group of its own; without a death signal, the watchdog alone sees the program's end.
func attributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true}
}

// onlyZombies is not needed where process 1 collects orphans.
func onlyZombies(int) bool { return false }
