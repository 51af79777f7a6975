//go:build unix && !linux

package process

import "syscall"

// attributes puts the program into a group of its own. There is no parent-death
// signal here: a SIGKILL of this process leaves its children running.
func attributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true}
}
