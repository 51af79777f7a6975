package manifest

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"

	"golang.org/x/text/encoding/unicode"
	"golang.org/x/text/transform"
)

// document is one document of a stream, without what stands before its content:
// empty lines, comments and directives.
type document struct {
	// line is the one on which data begins; the first of a stream is 1.
	line int
	data []byte
	// tooLarge is set where the document is longer than the limit. data is empty then.
	tooLarge bool
}

// splitter cuts a stream into documents: at "---" and "..." on a line of their
// own, and after each JSON value that ends with its line.
type splitter struct {
	input *bufio.Reader
	limit int

	// line is the number of the line that is read next.
	line int
	// current is the document that is being read.
	current document
	json    balance
}

const (
	separator   = "---"
	terminator  = "..."
	byteOrder   = "\xef\xbb\xbf"
	inputBuffer = 64 << 10
)

// newSplitter reads UTF-8, or UTF-16 if the stream begins with its byte order mark.
func newSplitter(input io.Reader, limit int) *splitter {
	decoded := transform.NewReader(input, unicode.BOMOverride(transform.Nop))
	return &splitter{input: bufio.NewReaderSize(decoded, inputBuffer), limit: limit, line: 1}
}

// next returns the next document that is not empty. The error is io.EOF at the
// end, else the reader's.
func (s *splitter) next() (document, error) {
	for {
		done, end, err := s.readLine()
		switch {
		case err != nil && !errors.Is(err, io.EOF):
			return document{}, fmt.Errorf("cannot go on after line %d: %w", s.line-1, err)
		case done.line > 0:
			return done, nil
		case end:
			return document{}, io.EOF
		}
	}
}

// readLine reads one line. It returns the document that the line ends, if it
// does, and whether the stream is at its end.
func (s *splitter) readLine() (done document, end bool, err error) {
	first := true
	for {
		part, err := s.input.ReadSlice('\n')
		whole := !errors.Is(err, bufio.ErrBufferFull)
		if err != nil && whole && !errors.Is(err, io.EOF) {
			return document{}, true, err
		}
		if first && isMarker(part) {
			done = s.take()
			part = rest(part)
		}
		s.add(part, first)
		if !whole {
			first = false
			continue
		}
		s.line++
		if errors.Is(err, io.EOF) {
			if done.line > 0 {
				// Its last line is a separator with something behind it.
				s.line--
				s.input = bufio.NewReader(bytes.NewReader(nil))
				return done, false, nil
			}
			return s.take(), true, nil
		}
		if done.line == 0 && s.json.closed() && json(s.current.data) {
			done = s.take()
		}
		return done, false, nil
	}
}

// add appends a part of a line to the document. first is set for the line's beginning.
func (s *splitter) add(part []byte, first bool) {
	if s.current.line == 0 {
		if !first {
			// More of a line that is insignificant.
			return
		}
		part = bytes.TrimPrefix(part, []byte(byteOrder))
		significant := bytes.TrimLeft(part, " \t\r\n")
		if len(significant) == 0 || significant[0] == '#' || part[0] == '%' {
			return
		}
		s.current.line = s.line
		s.json = balance{possible: significant[0] == '{'}
	}
	if s.current.tooLarge {
		return
	}
	if len(s.current.data)+len(part) > s.limit {
		s.current.tooLarge, s.current.data, s.json = true, nil, balance{}
		return
	}
	s.json.read(part)
	s.current.data = append(s.current.data, part...)
}

func (s *splitter) take() document {
	done := s.current
	s.current, s.json = document{}, balance{}
	return done
}

// isMarker says whether a line begins or ends a document. Nowhere in YAML or
// JSON can the content of a document look like that.
func isMarker(line []byte) bool {
	line = bytes.TrimPrefix(line, []byte(byteOrder))
	if !bytes.HasPrefix(line, []byte(separator)) && !bytes.HasPrefix(line, []byte(terminator)) {
		return false
	}
	return len(line) == len(separator) || bytes.IndexByte([]byte(" \t\r\n"), line[len(separator)]) >= 0
}

// rest is what stands behind a marker, in the column that it had.
func rest(line []byte) []byte {
	line = bytes.Clone(bytes.TrimPrefix(line, []byte(byteOrder)))
	copy(line, "   ")
	return line
}

// balance follows the brackets of a JSON value, to find its end without
// parsing it again and again.
type balance struct {
	// possible is false where the document is no JSON value.
	possible        bool
	depth           int
	quoted, escaped bool
}

func (b *balance) read(part []byte) {
	if !b.possible {
		return
	}
	for _, c := range part {
		switch {
		case b.escaped:
			b.escaped = false
		case b.quoted:
			b.escaped = c == '\\'
			b.quoted = c != '"'
		case c == '"':
			b.quoted = true
		case c == '{' || c == '[':
			b.depth++
		case c == '}' || c == ']':
			b.depth--
		}
	}
}

// closed says whether all that was opened is closed again.
func (b *balance) closed() bool { return b.possible && b.depth == 0 && !b.quoted }
