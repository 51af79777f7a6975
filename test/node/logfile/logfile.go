// Package logfile keeps a container's output on disk, bounded in size, for `kubectl logs`.
//
//	stdout ─┐
//	        ├─> Log: one record per line: time, stream, whole (F) or part (P) of a line, text
//	stderr ─┘     current file, and one older file when the current is full
//
// The format of a record is the one that container runtimes write
// (https://github.com/kubernetes/design-proposals-archive/blob/main/node/kubelet-cri-logging.md).
package logfile

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"sync"
	"time"
)

const (
	// maxLine is how much of a line goes into one record, in bytes.
	maxLine = 16 << 10
	// olderSuffix is appended to the name of the file that was full.
	olderSuffix = ".1"
	// timeLayout has a fixed width, unlike time.RFC3339Nano.
	timeLayout = "2006-01-02T15:04:05.000000000Z07:00"
)

// Log is the output of one run of one container.
type Log struct {
	path string
	max  int64
	now  func() time.Time

	// mu guards the rest; writes to the local file are made under it, to keep records whole.
	mu      sync.Mutex
	file    *os.File
	size    int64
	segment int           // how often the file was full
	changed chan struct{} // closed and replaced at each write
	closed  bool
}

// Create makes an empty Log at path that keeps at least the last limit/2 and at most limit bytes.
func Create(path string, limit int64, now func() time.Time) (*Log, error) {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("cannot create log %q: %w", path, err)
	}
	_ = os.Remove(path + olderSuffix)
	return &Log{path: path, max: limit, now: now, file: file, changed: make(chan struct{})}, nil
}

// Stream returns a writer that makes records of lines for the named stream ("stdout" or "stderr"). One goroutine uses it.
// Its Close writes an unfinished last line.
func (l *Log) Stream(name string) io.WriteCloser { return &stream{log: l, name: name} }

type stream struct {
	log  *Log
	name string
	rest []byte
}

func (s *stream) Write(p []byte) (int, error) {
	s.rest = append(s.rest, p...)
	for {
		end := bytes.IndexByte(s.rest, '\n')
		switch {
		case end >= 0 && end <= maxLine:
			if err := s.log.record(s.name, 'F', s.rest[:end]); err != nil {
				return 0, err
			}
			s.rest = s.rest[end+1:]
		case len(s.rest) > maxLine:
			if err := s.log.record(s.name, 'P', s.rest[:maxLine]); err != nil {
				return 0, err
			}
			s.rest = s.rest[maxLine:]
		default:
			return len(p), nil
		}
	}
}

func (s *stream) Close() error {
	if len(s.rest) == 0 {
		return nil
	}
	rest := s.rest
	s.rest = nil
	return s.log.record(s.name, 'F', rest)
}

func (l *Log) record(stream string, tag byte, text []byte) error {
	record := make([]byte, 0, len(timeLayout)+len(stream)+len(text)+5)
	record = l.now().UTC().AppendFormat(record, timeLayout)
	record = append(record, ' ')
	record = append(record, stream...)
	record = append(record, ' ', tag, ' ')
	record = append(append(record, text...), '\n')
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return fs.ErrClosed
	}
	if l.size > 0 && l.size+int64(len(record)) > l.max/2 {
		if err := l.turn(); err != nil {
			return err
		}
	}
	n, err := l.file.Write(record)
	l.size += int64(n)
	close(l.changed)
	l.changed = make(chan struct{})
	return err
}

// turn makes the full file the older one. l.mu is held.
func (l *Log) turn() error {
	if err := os.Rename(l.path, l.path+olderSuffix); err != nil {
		return fmt.Errorf("cannot turn log %q: %w", l.path, err)
	}
	file, err := os.OpenFile(l.path, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("cannot create log %q: %w", l.path, err)
	}
	_ = l.file.Close()
	l.file, l.size, l.segment = file, 0, l.segment+1
	return nil
}

// Close ends the Log: readers that follow it come to its end.
func (l *Log) Close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return
	}
	l.closed = true
	_ = l.file.Close()
	close(l.changed)
}

// Options say what to read. The zero value is everything there is.
type Options struct {
	// Tail is the number of last lines, all when negative or nil.
	Tail *int
	// Since leaves out older lines.
	Since time.Time
	// Timestamps puts the time before each line.
	Timestamps bool
	// Follow waits for more until the Log is closed.
	Follow bool
	// Limit ends the output after so many bytes, when positive.
	Limit int64
}

// Copy writes the log to w until its end, an error of w, or the end of ctx, which is no error.
func (l *Log) Copy(ctx context.Context, w io.Writer, options Options) error {
	reader, err := l.open()
	if err != nil {
		return err
	}
	defer reader.close()
	return copyRecords(ctx, w, options, reader)
}

// CopyFile writes the log at path, which nobody writes any more. Its Follow has nothing to wait for.
func CopyFile(ctx context.Context, path string, w io.Writer, options Options) error {
	options.Follow = false
	l := &Log{path: path, closed: true, changed: make(chan struct{})}
	return l.Copy(ctx, w, options)
}

func copyRecords(ctx context.Context, w io.Writer, options Options, reader *reader) error {
	out := &output{w: w, options: options}
	var last [][]byte
	for {
		record, err := reader.next()
		if err != nil {
			return err
		}
		if record == nil {
			break
		}
		if options.Tail == nil {
			if err := out.write(record); err != nil || out.full {
				return err
			}
			continue
		}
		if out.wants(record) {
			last = append(last, record)
			if len(last) > max(*options.Tail, 0) {
				last = last[1:]
			}
		}
	}
	for _, record := range last {
		if err := out.write(record); err != nil || out.full {
			return err
		}
	}
	for options.Follow {
		more, err := reader.wait(ctx)
		if err != nil || !more {
			return err
		}
		for {
			record, err := reader.next()
			if err != nil {
				return err
			}
			if record == nil {
				break
			}
			if err := out.write(record); err != nil || out.full {
				return err
			}
		}
	}
	return nil
}

// output turns records into the lines that a user asked for.
type output struct {
	w       io.Writer
	options Options
	written int64
	partial bool // the last record did not end its line
	full    bool
}

func (o *output) wants(record []byte) bool {
	if o.options.Since.IsZero() {
		return true
	}
	stamp, _, _ := bytes.Cut(record, []byte(" "))
	at, err := time.Parse(timeLayout, string(stamp))
	return err != nil || !at.Before(o.options.Since)
}

func (o *output) write(record []byte) error {
	if !o.wants(record) {
		return nil
	}
	fields := bytes.SplitN(record, []byte(" "), 4)
	if len(fields) < 4 {
		return nil
	}
	var line []byte
	if o.options.Timestamps && !o.partial {
		line = append(append(line, fields[0]...), ' ')
	}
	line = append(line, fields[3]...)
	o.partial = string(fields[2]) == "P"
	if !o.partial {
		line = append(line, '\n')
	}
	if limit := o.options.Limit; limit > 0 && o.written+int64(len(line)) >= limit {
		line, o.full = line[:limit-o.written], true
	}
	o.written += int64(len(line))
	_, err := o.w.Write(line)
	return err
}

// reader reads records across the turn of the file.
type reader struct {
	log     *Log
	file    *os.File
	buffer  *bufio.Reader
	segment int
	rest    []byte
	seen    <-chan struct{} // the state of the log when the reader last found nothing
}

// open starts at the older file, if there is one.
func (l *Log) open() (*reader, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	r := &reader{log: l, segment: l.segment}
	file, err := os.Open(l.path + olderSuffix)
	if err == nil {
		r.segment--
	} else if errors.Is(err, fs.ErrNotExist) {
		file, err = os.Open(l.path)
	}
	if err != nil {
		return nil, fmt.Errorf("cannot open log: %w", err)
	}
	r.use(file)
	return r, nil
}

func (r *reader) use(file *os.File) {
	r.close()
	r.file, r.buffer = file, bufio.NewReaderSize(file, 2*maxLine)
}

func (r *reader) close() {
	if r.file != nil {
		_ = r.file.Close()
	}
}

// next returns a record without its line end, or nil when there is none yet.
func (r *reader) next() ([]byte, error) {
	for {
		// Taken before reading: what is written after it closes the channel.
		r.log.mu.Lock()
		seen, segment := r.log.changed, r.log.segment
		r.log.mu.Unlock()
		part, err := r.buffer.ReadBytes('\n')
		r.rest = append(r.rest, part...)
		if err == nil {
			record := r.rest[:len(r.rest)-1]
			r.rest = nil
			return record, nil
		}
		if !errors.Is(err, io.EOF) {
			return nil, fmt.Errorf("cannot read log %q: %w", r.log.path, err)
		}
		if segment == r.segment {
			r.seen = seen
			return nil, nil
		}
		// The file that was read is full and its end was just seen: go on with the current one.
		r.log.mu.Lock()
		file, err := os.Open(r.log.path)
		r.segment = r.log.segment
		r.log.mu.Unlock()
		if err != nil {
			return nil, fmt.Errorf("cannot open log: %w", err)
		}
		r.rest = nil
		r.use(file)
	}
}

// wait returns when something may have been written. It is false at the end of a closed log or of ctx.
func (r *reader) wait(ctx context.Context) (bool, error) {
	select {
	case <-ctx.Done():
		return false, nil
	case <-r.seen:
	}
	r.log.mu.Lock()
	defer r.log.mu.Unlock()
	// A closed log's channel stays as it is: once it was seen closed by next, there is nothing more.
	if r.log.closed && r.seen == (<-chan struct{})(r.log.changed) && r.drained() {
		return false, nil
	}
	return true, nil
}

// drained reports whether the file that is read has nothing after the reader's place. log.mu is held.
func (r *reader) drained() bool {
	if r.segment != r.log.segment || r.buffer.Buffered() > 0 {
		return false
	}
	at, err := r.file.Seek(0, io.SeekCurrent)
	if err != nil {
		return true
	}
	info, err := r.file.Stat()
	return err != nil || info.Size() <= at
}
