package manifest

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

const (
	// StandardInput is the path that stands for standard input, as in kubectl.
	StandardInput = "-"
	// StandardInputName is how places on standard input are named.
	StandardInputName = "stdin"
	// DefaultLimit is the most bytes that one document may have. etcd holds
	// objects of 1.5 MiB; a document may be a list of many.
	DefaultLimit = 16 << 20
	// spoolMemory is how much of standard input is kept in memory.
	spoolMemory = 4 << 20
)

// Object is one object of a manifest.
type Object struct {
	// File and Line are where it begins; the first line is 1.
	File string
	Line int

	APIVersion, Kind string
	// Namespace is empty where the manifest leaves it out.
	Namespace, Name, GenerateName string
	// JSON is the whole object.
	JSON []byte
}

// Error is something that cannot be read.
type Error struct {
	File string
	// Line is 0 where the whole file cannot be read.
	Line int
	Err  error
}

// Error implements error: file:line: what.
func (e *Error) Error() string {
	if e.Line == 0 {
		return fmt.Sprintf("%s: %v", e.File, e.Err)
	}
	return fmt.Sprintf("%s:%d: %v", e.File, e.Line, e.Err)
}

// Unwrap gives the cause.
func (e *Error) Unwrap() error { return e.Err }

// Set is a number of files that can be read several times.
type Set struct {
	files  []file
	faults []*Error
	limit  int
	// spool keeps what is too large for memory; named says that it still has its
	// name, so that Close must remove it.
	spool *os.File
	named bool
}

// file is one stream.
type file struct {
	name string
	open func() (io.ReadCloser, error)
}

// Open finds the files to read: each path is a file, a folder, which stands for
// all its .yaml, .yml and .json files and those of the folders within, in the
// order of their names, or StandardInput. Hidden files and folders in a folder
// are left out, links are followed. limit is the most bytes of one document;
// zero stands for DefaultLimit. The error is that of standard input; what is
// wrong with a path is told by Objects. Close the set.
func Open(paths []string, stdin io.Reader, limit int) (*Set, error) {
	if limit <= 0 {
		limit = DefaultLimit
	}
	set := &Set{limit: limit}
	for _, path := range paths {
		if path != StandardInput {
			set.add(path, map[string]bool{}, true)
			continue
		}
		if slices.ContainsFunc(set.files, func(f file) bool { return f.name == StandardInputName }) {
			continue
		}
		if err := set.keep(stdin); err != nil {
			return nil, errors.Join(fmt.Errorf("cannot read standard input: %w", err), set.Close())
		}
	}
	return set, nil
}

// Files is how many files there are.
func (s *Set) Files() int { return len(s.files) }

// Close removes what was kept of standard input.
func (s *Set) Close() error {
	if s.spool == nil {
		return nil
	}
	err := s.spool.Close()
	if s.named {
		err = errors.Join(err, os.Remove(s.spool.Name()))
	}
	s.spool = nil
	return err
}

// Mentioning reads only documents in which one of the words stands. It is for a
// first look at what is rare: a word that is written with escapes is not found.
func Mentioning(words ...string) func([]byte) bool {
	return func(document []byte) bool {
		return slices.ContainsFunc(words, func(word string) bool { return bytes.Contains(document, []byte(word)) })
	}
}

// Objects reads all files. What cannot be read comes as an *Error, and the rest
// nevertheless. wanted, if not nil, says of a document, as it is written,
// whether it is to be read.
func (s *Set) Objects(wanted func([]byte) bool) iter.Seq2[Object, error] {
	return func(yield func(Object, error) bool) {
		for _, fault := range s.faults {
			if !yield(Object{}, fault) {
				return
			}
		}
		for _, f := range s.files {
			if !s.read(f, wanted, yield) {
				return
			}
		}
	}
}

func (s *Set) read(f file, wanted func([]byte) bool, yield func(Object, error) bool) bool {
	input, err := f.open()
	if err != nil {
		return yield(Object{}, &Error{File: f.name, Err: cause(err)})
	}
	defer func() { _ = input.Close() }()
	return Read(f.name, input, s.limit, wanted, yield)
}

// Read reads one stream, as Set.Objects does, and returns false if yield did.
func Read(name string, input io.Reader, limit int, wanted func([]byte) bool, yield func(Object, error) bool) bool {
	documents := newSplitter(input, limit)
	reader := decoder{file: name, limit: limit, yield: yield}
	for {
		document, err := documents.next()
		switch {
		case errors.Is(err, io.EOF):
			return true
		case err != nil:
			return yield(Object{}, &Error{File: name, Err: cause(err)})
		case wanted != nil && !document.tooLarge && !wanted(document.data):
			continue
		}
		if !reader.decode(document) {
			return false
		}
	}
}

// add finds the files of a path. seen are the folders that were found already,
// by their real paths; named is set for a path that somebody wrote.
func (s *Set) add(path string, seen map[string]bool, named bool) {
	info, err := os.Stat(path)
	switch {
	case err != nil:
		s.fault(path, err)
	case !info.IsDir() && !info.Mode().IsRegular() && !named:
		if isManifest(path) {
			// Opening a pipe would wait for whoever writes to it.
			s.fault(path, errors.New("it is no regular file; name it to have it read"))
		}
	case !info.IsDir():
		if named || isManifest(path) {
			s.files = append(s.files, file{name: path, open: func() (io.ReadCloser, error) { return os.Open(path) }}) //nolint:gosec // The path is the operator's.
		}
	default:
		s.addFolder(path, seen, named)
	}
}

func (s *Set) addFolder(path string, seen map[string]bool, named bool) {
	target, err := filepath.EvalSymlinks(path)
	if err != nil {
		s.fault(path, err)
		return
	}
	if seen[target] {
		// A link to a folder that it is in, or that is read anyway.
		return
	}
	seen[target] = true
	entries, err := os.ReadDir(path)
	if err != nil {
		s.fault(path, err)
	}
	before := len(s.files) + len(s.faults)
	for _, entry := range entries {
		if !strings.HasPrefix(entry.Name(), ".") {
			s.add(filepath.Join(path, entry.Name()), seen, false)
		}
	}
	if named && len(s.files)+len(s.faults) == before {
		s.fault(path, errors.New("no .yaml, .yml or .json file is in this folder"))
	}
}

func (s *Set) fault(path string, err error) {
	s.faults = append(s.faults, &Error{File: path, Err: cause(err)})
}

func isManifest(path string) bool {
	switch strings.ToLower(filepath.Ext(path)) {
	case ".yaml", ".yml", ".json":
		return true
	default:
		return false
	}
}

// cause leaves out the path, which the message has already.
func cause(err error) error {
	if inner := (*fs.PathError)(nil); errors.As(err, &inner) {
		return fmt.Errorf("cannot %s: %w", inner.Op, inner.Err)
	}
	return err
}

// keep reads standard input to its end, for it can be read only once.
func (s *Set) keep(stdin io.Reader) error {
	memory := &bytes.Buffer{}
	_, err := io.CopyN(memory, stdin, spoolMemory)
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	if err != nil {
		s.files = append(s.files, file{name: StandardInputName, open: func() (io.ReadCloser, error) {
			return io.NopCloser(bytes.NewReader(memory.Bytes())), nil
		}})
		return nil
	}
	if s.spool, err = os.CreateTemp("", "manifest-stdin-"); err != nil {
		return err
	}
	// Where a file can be read without its name, nothing is left if the program is
	// killed.
	s.named = os.Remove(s.spool.Name()) != nil
	size, err := io.Copy(s.spool, io.MultiReader(memory, stdin))
	if err != nil {
		return err
	}
	s.files = append(s.files, file{name: StandardInputName, open: func() (io.ReadCloser, error) {
		return io.NopCloser(io.NewSectionReader(s.spool, 0, size)), nil
	}})
	return nil
}
