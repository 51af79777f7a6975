package environ

import (
	"cmp"
	"path"
	"slices"
	"strings"
)

// Mount says where on the host a container's path is.
type Mount struct {
	// Path is the mount path in the container's terms, Host the file or folder in its place. Both are absolute.
	Path, Host string
}

// Mounts are those of one container.
type Mounts []Mount

// Rewrite puts the host's folder in the place of each mount path in s. A mount path is replaced where it stands at the start of a path
// (at the start of s or after a character that no path continues over, as in --dir=/etc/tls or a:/etc/tls) and is followed by the end of the
// path or by a slash, so /etc/tls does not touch /etc/tls-old nor /opt/etc/tls. The longest mount path wins.
func (m Mounts) Rewrite(s string) string {
	if len(m) == 0 || !strings.Contains(s, "/") {
		return s
	}
	sorted := slices.Clone(m)
	slices.SortStableFunc(sorted, func(a, b Mount) int { return cmp.Compare(len(b.Path), len(a.Path)) })
	var out strings.Builder
	for i := 0; i < len(s); {
		if s[i] == '/' && (i == 0 || !continues(s[i-1])) {
			if mount, ok := sorted.at(s[i:]); ok {
				out.WriteString(mount.Host)
				i += len(clean(mount.Path))
				continue
			}
		}
		out.WriteByte(s[i])
		i++
	}
	return out.String()
}

func (m Mounts) at(s string) (Mount, bool) {
	for _, mount := range m {
		rest, ok := strings.CutPrefix(s, clean(mount.Path))
		if ok && mount.Path != "/" && (rest == "" || rest[0] == '/' || !continues(rest[0])) {
			return mount, true
		}
	}
	return Mount{}, false
}

func clean(p string) string { return path.Clean(p) }

// continues reports whether c can stand within a path's name, so that a path before it goes on.
func continues(c byte) bool {
	switch {
	case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9':
		return true
	}
	return strings.IndexByte("/._-~+@%#", c) >= 0
}
