package volume

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// dataLink points to the folder that holds the current files.
const dataLink = "..data"

// File is one file of a volume.
type File struct {
	Data []byte
	// Mode are the permission bits.
	Mode fs.FileMode
}

// Payload are the files of a volume by their path within it, with slashes.
type Payload map[string]File

// Write brings the folder dir to hold exactly the payload, so that a reader sees either all old or all new files: the files go into a
// fresh folder, and one rename of the link ..data, through which all names lead, puts it in place
// (https://kubernetes.io/docs/concepts/storage/volumes/#configmap tells what containers rely on). It reports whether anything changed.
func Write(dir string, payload Payload) (bool, error) {
	for name := range payload {
		if err := validate(name); err != nil {
			return false, err
		}
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return false, fmt.Errorf("cannot create volume %q: %w", dir, err)
	}
	old, err := os.Readlink(filepath.Join(dir, dataLink))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, fmt.Errorf("cannot read volume %q: %w", dir, err)
	}
	if old != "" && same(filepath.Join(dir, old), payload) {
		return false, nil
	}
	fresh, err := os.MkdirTemp(dir, "..")
	if err != nil {
		return false, fmt.Errorf("cannot create a folder in volume %q: %w", dir, err)
	}
	if err := fill(fresh, payload); err != nil {
		_ = os.RemoveAll(fresh)
		return false, err
	}
	if err := replaceLink(filepath.Join(dir, dataLink), filepath.Base(fresh)); err != nil {
		_ = os.RemoveAll(fresh)
		return false, err
	}
	if err := linkNames(dir, payload); err != nil {
		return false, err
	}
	if old != "" {
		_ = os.RemoveAll(filepath.Join(dir, old))
	}
	return true, nil
}

func fill(dir string, payload Payload) error {
	// MkdirTemp makes a private folder; other users' processes may read volumes.
	if err := os.Chmod(dir, 0o755); err != nil {
		return fmt.Errorf("cannot open volume folder %q: %w", dir, err)
	}
	for name, file := range payload {
		path := filepath.Join(dir, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return fmt.Errorf("cannot create folder of %q: %w", path, err)
		}
		if err := os.WriteFile(path, file.Data, 0o600); err != nil {
			return fmt.Errorf("cannot write %q: %w", path, err)
		}
		// Not by WriteFile, whose mode the umask narrows.
		if err := os.Chmod(path, file.Mode.Perm()); err != nil {
			return fmt.Errorf("cannot set mode of %q: %w", path, err)
		}
	}
	return nil
}

// same reports whether the folder holds exactly the payload.
func same(dir string, payload Payload) bool {
	count := 0
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		name, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		file, ok := payload[filepath.ToSlash(name)]
		if !ok {
			return fs.ErrNotExist
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		data, err := os.ReadFile(path)
		if err != nil || !bytes.Equal(data, file.Data) || info.Mode().Perm() != file.Mode.Perm() {
			return fs.ErrInvalid
		}
		count++
		return nil
	})
	return err == nil && count == len(payload)
}

// linkNames makes the first name of each path lead through the data link, and removes names that are gone.
func linkNames(dir string, payload Payload) error {
	want := map[string]bool{}
	for name := range payload {
		first, _, _ := strings.Cut(name, "/")
		want[first] = true
	}
	for name := range want {
		target := filepath.Join(dataLink, name)
		if have, err := os.Readlink(filepath.Join(dir, name)); err == nil && have == target {
			continue
		}
		if err := replaceLink(filepath.Join(dir, name), target); err != nil {
			return err
		}
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("cannot read volume %q: %w", dir, err)
	}
	for _, entry := range entries {
		if name := entry.Name(); !strings.HasPrefix(name, "..") && !want[name] {
			if err := os.RemoveAll(filepath.Join(dir, name)); err != nil {
				return fmt.Errorf("cannot remove %q from volume: %w", name, err)
			}
		}
	}
	return nil
}

func replaceLink(path, target string) error {
	next := filepath.Join(filepath.Dir(path), ".."+filepath.Base(path)+"_next")
	_ = os.Remove(next)
	if err := os.Symlink(target, next); err != nil {
		return fmt.Errorf("cannot link %q: %w", path, err)
	}
	if err := os.Rename(next, path); err != nil {
		return fmt.Errorf("cannot put link %q in place: %w", path, err)
	}
	return nil
}

// validate refuses what would leave the volume or clash with its own names.
func validate(name string) error {
	if name == "" || !filepath.IsLocal(filepath.FromSlash(name)) || strings.HasPrefix(name, "..") || filepath.Clean(name) != name {
		return fmt.Errorf("cannot write volume: %q is not a path within it", name)
	}
	return nil
}
