package audit

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"gopkg.in/natefinch/lumberjack.v2"
)

// StandardOutput is the name of the sink that writes to standard output.
const StandardOutput = "-"

// fileMode is the most that an audit log's permissions may be: names of users
// and of what they asked for are nobody's business but the operator's.
const fileMode fs.FileMode = 0o640

// Rotation says when an audit file is moved aside, and how long it is kept.
type Rotation struct {
	// MaxSize is how large the file grows, in MiB; at least 1.
	MaxSize int
	// MaxBackups is how many files that were moved aside are kept; zero keeps all.
	MaxBackups int
	// MaxAge is for how many days they are kept; zero is for ever. It is looked at
	// when a file is moved aside.
	MaxAge int
}

// Open opens a sink: StandardOutput, or a file to append to. A file is rotated,
// and its permissions are fileMode or less; a device or a named pipe is opened by
// the first line, which may have to wait for a reader. Closing does not close
// standard output.
func Open(name string, stdout io.Writer, rotation Rotation) (io.WriteCloser, error) {
	switch name {
	case "":
		return nil, errors.New("cannot open audit log: no name given; use - for standard output, or a path")
	case StandardOutput:
		return &whole{to: stdout}, nil
	}
	info, err := os.Stat(name)
	switch {
	case err == nil && info.IsDir():
		return nil, fmt.Errorf("cannot open audit log %q: it is a folder, name a file in it", name)
	case err == nil && !info.Mode().IsRegular():
		return &special{name: name}, nil
	}
	if err := tryOut(name); err != nil {
		return nil, fmt.Errorf("cannot open audit log %q: %w", name, err)
	}
	return &file{name: name, log: &lumberjack.Logger{
		Filename: name, MaxSize: rotation.MaxSize, MaxBackups: rotation.MaxBackups, MaxAge: rotation.MaxAge,
	}}, nil
}

// tryOut finds what would fail later, and takes permissions from an older file
// that are more than fileMode: those that are moved aside keep them.
func tryOut(name string) error {
	opened, err := os.OpenFile(name, os.O_APPEND|os.O_CREATE|os.O_WRONLY, fileMode) //nolint:gosec // The path is the operator's.
	if err != nil {
		return err
	}
	info, err := opened.Stat()
	if err == nil && info.Mode().Perm()&^fileMode != 0 {
		err = opened.Chmod(info.Mode().Perm() & fileMode)
	}
	return errors.Join(err, opened.Close())
}

// file is a file that is rotated by size, and followed when something else moves
// it or cuts it off. Not safe for concurrent use.
type file struct {
	name string
	log  *lumberjack.Logger
	// last is the file that was written to.
	last fs.FileInfo
	// torn says that the file ends within a line.
	torn bool
}

// Write writes one line, whole or not at all.
func (f *file) Write(line []byte) (int, error) {
	before, err := os.Stat(f.name)
	if f.last != nil && (err != nil || !os.SameFile(f.last, before)) {
		// Moved away or removed: the next write opens what is there, or makes it.
		_ = f.log.Close()
	}
	if f.torn {
		line = append([]byte{'\n'}, line...)
	}
	n, err := f.log.Write(line)
	if err != nil {
		f.mend(n)
		return 0, err
	}
	f.torn = false
	now, err := os.Stat(f.name)
	if err != nil || before == nil || !os.SameFile(before, now) {
		// A file that was just made is not opened to append, and would get a hole
		// when something else cuts it off. The next write opens it again.
		_ = f.log.Close()
	}
	f.last = now
	return n, nil
}

// mend takes back the beginning of a line whose end did not fit on the disk.
func (f *file) mend(n int) {
	if n == 0 {
		return
	}
	_ = f.log.Close()
	info, err := os.Stat(f.name)
	if err == nil {
		err = os.Truncate(f.name, info.Size()-int64(n))
	}
	f.torn = f.torn || err != nil
}

func (f *file) Close() error { return f.log.Close() }

// whole keeps lines apart on a sink that cannot take anything back.
type whole struct {
	to   io.Writer
	torn bool
}

func (w *whole) Write(line []byte) (int, error) {
	if w.torn {
		line = append([]byte{'\n'}, line...)
	}
	n, err := w.to.Write(line)
	switch {
	case err == nil:
		w.torn = false
	case n > 0:
		w.torn = n > 1 || !w.torn
	}
	return n, err
}

func (w *whole) Close() error { return nil }

// special is a device or a named pipe. It is opened by the first line, and again
// after an error: a reader that went away may come back.
type special struct {
	name   string
	opened *os.File
	to     *whole
}

func (s *special) Write(line []byte) (int, error) {
	if s.opened == nil {
		opened, err := os.OpenFile(s.name, os.O_WRONLY, 0)
		if err != nil {
			return 0, err
		}
		s.opened, s.to = opened, &whole{to: opened}
	}
	n, err := s.to.Write(line)
	if err != nil {
		_ = s.Close()
	}
	return n, err
}

func (s *special) Close() error {
	if s.opened == nil {
		return nil
	}
	err := s.opened.Close()
	s.opened = nil
	return err
}
