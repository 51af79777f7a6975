package process

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
)

// attributes put the process in a group of its own and bind its life to the thread that starts it.
func attributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

// onlyZombies reports whether the group has members and all of them have ended (proc_pid_stat(5)).
func onlyZombies(group int) bool {
	files, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		return false
	}
	found := false
	for _, file := range files {
		stat, err := os.ReadFile(file)
		if err != nil {
			continue
		}
		// The command's name, in parentheses, may hold anything; the fields after it are state, parent, group.
		_, rest, ok := cutLast(stat, ")")
		if !ok {
			continue
		}
		fields := bytes.Fields(rest)
		if len(fields) < 3 || string(fields[2]) != strconv.Itoa(group) {
			continue
		}
		found = true
		if state := fields[0][0]; state != 'Z' && state != 'X' {
			return false
		}
	}
	return found
}

func cutLast(s []byte, sep string) (before, after []byte, found bool) {
	i := bytes.LastIndex(s, []byte(sep))
	if i < 0 {
		return s, nil, false
	}
	return s[:i], s[i+len(sep):], true
}
