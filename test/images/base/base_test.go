package base_test

import (
	"archive/tar"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"slices"
	"testing"

	"github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"

	"github.com/metacontroller-solo/solo/test/images/base"
)

var options = base.Options{
	Links:     []base.Link{{Path: "usr/bin/metacontroller", Target: "/ko-app/controller"}},
	Platforms: []v1.Platform{{OS: "linux", Architecture: "amd64"}, {OS: "linux", Architecture: "arm64"}},
}

func TestIndex(t *testing.T) {
	var digests []v1.Hash
	var index v1.ImageIndex
	for range 2 {
		var err error
		if index, err = base.Index(options); err != nil {
			t.Fatal(err)
		}
		digest, err := index.Digest()
		if err != nil {
			t.Fatal(err)
		}
		digests = append(digests, digest)
	}
	if digests[0] != digests[1] {
		t.Errorf("the same input makes %s and %s", digests[0], digests[1])
	}
	manifest, err := index.IndexManifest()
	if err != nil || len(manifest.Manifests) != 2 {
		t.Fatalf("%+v, %v", manifest, err)
	}
	for i, one := range manifest.Manifests {
		if one.Platform.Architecture != options.Platforms[i].Architecture {
			t.Errorf("platform %s", one.Platform)
		}
		image, err := index.Image(one.Digest)
		if err != nil {
			t.Fatal(err)
		}
		config, err := image.ConfigFile()
		if err != nil || config.Config.User != base.User || config.Architecture != one.Platform.Architecture {
			t.Errorf("%+v, %v", config, err)
		}
		checkFiles(t, image)
	}
}

func checkFiles(t *testing.T, image v1.Image) {
	t.Helper()
	files := tar.NewReader(mutate.Extract(image))
	var found []string
	for {
		header, err := files.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		found = append(found, fmt.Sprintf("%s %o %d", header.Name, header.Mode, header.Uid))
		if header.Name == "etc/ssl/certs/ca-certificates.crt" {
			content, err := io.ReadAll(files)
			if pool := x509.NewCertPool(); err != nil || !pool.AppendCertsFromPEM(content) {
				t.Errorf("the roots cannot be read: %v", err)
			}
		}
	}
	slices.Sort(found)
	want := []string{
		"etc 755 0", "etc/group 644 0", "etc/nsswitch.conf 644 0", "etc/passwd 644 0", "etc/ssl 755 0", "etc/ssl/certs 755 0",
		"etc/ssl/certs/ca-certificates.crt 644 0", "tmp 1777 0", "usr 755 0", "usr/bin 755 0", "usr/bin/metacontroller 777 0",
	}
	if !slices.Equal(found, want) {
		t.Errorf("files are %q", found)
	}
}
