package process

import "syscall"

// attributes puts the program into a group of its own and ties its life to the
// thread that starts it (see supervise).
func attributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
