package main

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"time"
)

// clockTick is the unit of CPU times in /proc: USER_HZ is 100 wherever Go runs on
// Linux.
const clockTick = 10 * time.Millisecond

// cpuTime is the CPU time that a process used since its start, by proc(5), in
// steps of clockTick.
func cpuTime(pid int) (time.Duration, error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, fmt.Errorf("cannot read a CPU time: %w", err)
	}
	// The program's name, in brackets, is the second field; user and system time are
	// the 14th and 15th.
	fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
	if len(fields) < 13 {
		return 0, fmt.Errorf("cannot read a CPU time in %q", stat)
	}
	var sum time.Duration
	for _, field := range fields[11:13] {
		ticks, err := strconv.ParseInt(string(field), 10, 64)
		if err != nil {
			return 0, fmt.Errorf("cannot read a CPU time: %w", err)
		}
		sum += time.Duration(ticks) * clockTick
	}
	return sum, nil
}

// resetPeak makes a process's present memory its peak.
func resetPeak(pid int) error {
	if err := os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", pid), []byte("5"), 0); err != nil {
		return fmt.Errorf("cannot reset the peak of memory: %w", err)
	}
	return nil
}

// peakMemory is the most memory in bytes that a process had resident since the
// last reset.
func peakMemory(pid int) (int64, error) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, fmt.Errorf("cannot read the peak of memory: %w", err)
	}
	for line := range bytes.Lines(status) {
		if rest, ok := bytes.CutPrefix(line, []byte("VmHWM:")); ok {
			kib, err := strconv.ParseInt(string(bytes.TrimSuffix(bytes.TrimSpace(rest), []byte(" kB"))), 10, 64)
			if err != nil {
				return 0, fmt.Errorf("cannot read the peak of memory: %w", err)
			}
			return kib << 10, nil
		}
	}
	return 0, fmt.Errorf("cannot read the peak of memory: there is none of process %d", pid)
}
