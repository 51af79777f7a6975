package sandbox

import (
	"fmt"
	"io"
	"os"
)

// feed copies a stream into the standard input of a process.
type feed struct{ reader, writer *os.File }

func newFeed(from io.Reader) (*feed, error) {
	reader, writer, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("cannot make a pipe for the input of a process: %w", err)
	}
	f := &feed{reader, writer}
	go func() {
		// Ends with the stream or with close.
		_, _ = io.Copy(writer, from)
		_ = writer.Close()
	}()
	return f, nil
}

func (f *feed) close() {
	_ = f.reader.Close()
	_ = f.writer.Close()
}
