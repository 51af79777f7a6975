// Package base makes the image that the programs' images are built on: what a
// static program needs of a system, and nothing that runs.
//
//	roots of trust, users, links ─ Index ─> image index, one image for each platform
//
// The same input makes the same bytes. The package is pure.
package base

import (
	"archive/tar"
	"bytes"
	"encoding/pem"
	"fmt"
	"io"
	"time"

	"github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"golang.org/x/crypto/x509roots/fallback/bundle"
)

// User is who the programs run as, as group:user of /etc/passwd, in numbers: a Pod
// with runAsNonRoot is told by these alone.
const User = "65532:65532"

const nonRoot = 65532

// Modes of files.
const (
	modeFile   = 0o644
	modeFolder = 0o755
	// modeTmp lets everybody write, and nobody remove what is another's.
	modeTmp = 0o1777
)

// Options say what differs between base images.
type Options struct {
	// Links are symbolic links, from path to target.
	Links []Link
	// Platforms are those of the images.
	Platforms []v1.Platform
}

// Link is a symbolic link.
type Link struct{ Path, Target string }

// Index is the base images of all platforms. They have the same files.
func Index(o Options) (v1.ImageIndex, error) {
	content, err := archive(o.Links)
	if err != nil {
		return nil, err
	}
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(content)), nil
	}, tarball.WithMediaType(types.OCILayer))
	if err != nil {
		return nil, fmt.Errorf("cannot make the layer: %w", err)
	}
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, platform := range o.Platforms {
		image, err := imageOf(layer, platform)
		if err != nil {
			return nil, fmt.Errorf("cannot make the image for %s: %w", platform.String(), err)
		}
		index = mutate.AppendManifests(index, mutate.IndexAddendum{Add: image, Descriptor: v1.Descriptor{Platform: &platform}})
	}
	return index, nil
}

func imageOf(layer v1.Layer, platform v1.Platform) (v1.Image, error) {
	image := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	image, err := mutate.Append(image, mutate.Addendum{Layer: layer, History: v1.History{Author: "test/images", CreatedBy: "roots of trust, users"}})
	if err != nil {
		return nil, err
	}
	config, err := image.ConfigFile()
	if err != nil {
		return nil, err
	}
	config = config.DeepCopy()
	config.OS, config.Architecture = platform.OS, platform.Architecture
	config.Config.User, config.Config.WorkingDir = User, "/"
	config.Config.Env = []string{"PATH=/usr/local/bin:/usr/bin:/bin", "SSL_CERT_FILE=/" + roots}
	return mutate.ConfigFile(image, config)
}

// roots is where Go, too, looks for the roots of trust.
const roots = "etc/ssl/certs/ca-certificates.crt"

// archive is the files, as a tar archive.
func archive(links []Link) ([]byte, error) {
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	write := func(header tar.Header, content []byte) error {
		header.ModTime, header.Format, header.Size = time.Unix(0, 0), tar.FormatPAX, int64(len(content))
		if err := w.WriteHeader(&header); err != nil {
			return err
		}
		_, err := w.Write(content)
		return err
	}
	for _, folder := range []string{"etc/", "etc/ssl/", "etc/ssl/certs/", "usr/", "usr/bin/"} {
		if err := write(tar.Header{Typeflag: tar.TypeDir, Name: folder, Mode: modeFolder}, nil); err != nil {
			return nil, err
		}
	}
	if err := write(tar.Header{Typeflag: tar.TypeDir, Name: "tmp/", Mode: modeTmp}, nil); err != nil {
		return nil, err
	}
	users := fmt.Sprintf("root:x:0:0:root:/root:/sbin/nologin\nnonroot:x:%d:%d:nonroot:/tmp:/sbin/nologin\n", nonRoot, nonRoot)
	groups := fmt.Sprintf("root:x:0:\nnonroot:x:%d:\n", nonRoot)
	for _, file := range []struct {
		name    string
		content []byte
	}{
		{"etc/passwd", []byte(users)}, {"etc/group", []byte(groups)},
		{"etc/nsswitch.conf", []byte("hosts: files dns\n")}, {roots, trusted()},
	} {
		if err := write(tar.Header{Typeflag: tar.TypeReg, Name: file.name, Mode: modeFile}, file.content); err != nil {
			return nil, err
		}
	}
	for _, link := range links {
		if err := write(tar.Header{Typeflag: tar.TypeSymlink, Name: link.Path, Linkname: link.Target, Mode: 0o777}, nil); err != nil {
			return nil, err
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}

// trusted is Mozilla's roots, as PEM, but for those that it trusts with limits,
// which a list of certificates cannot say.
func trusted() []byte {
	var out bytes.Buffer
	for root := range bundle.Roots() {
		if root.Constraint == nil {
			_ = pem.Encode(&out, &pem.Block{Type: "CERTIFICATE", Bytes: root.Certificate})
		}
	}
	return out.Bytes()
}
