package main

import (
	"archive/tar"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"

	"github.com/metacontroller-solo/solo/test/images/base"
)

// TestImages builds all images twice and looks at what is on disk.
func TestImages(t *testing.T) {
	const version = "v0.0.0-test"
	var dirs []string
	for range 2 {
		dir := filepath.Join(t.TempDir(), "images")
		if err := Build(t.Context(), "../..", dir, version); err != nil {
			t.Fatal(err)
		}
		dirs = append(dirs, dir)
	}
	for _, one := range images {
		t.Run(one.name, func(t *testing.T) {
			first, digest := read(t, filepath.Join(dirs[0], one.name), version)
			_, again := read(t, filepath.Join(dirs[1], one.name), version)
			if digest != again {
				t.Errorf("two builds are %s and %s", digest, again)
			}
			manifest, err := first.IndexManifest()
			if err != nil {
				t.Fatal(err)
			}
			var found []string
			for _, entry := range manifest.Manifests {
				found = append(found, entry.Platform.String())
				built, err := first.Image(entry.Digest)
				if err != nil {
					t.Fatal(err)
				}
				check(t, one, built, entry.Platform.Architecture, version)
				checkSBOM(t, filepath.Join(dirs[0], "sbom", one.name+"-linux-"+entry.Platform.Architecture+".spdx.json"))
			}
			if !slices.Equal(found, []string{"linux/amd64", "linux/arm64"}) {
				t.Errorf("platforms are %q", found)
			}
			checkSBOM(t, filepath.Join(dirs[0], "sbom", one.name+"-index.spdx.json"))
		})
	}
}

// read returns the one index of a layout.
func read(t *testing.T, path, version string) (v1.ImageIndex, v1.Hash) {
	t.Helper()
	in, err := layout.FromPath(path)
	if err != nil {
		t.Fatal(err)
	}
	all, err := in.ImageIndex()
	if err != nil {
		t.Fatal(err)
	}
	manifest, err := all.IndexManifest()
	if err != nil || len(manifest.Manifests) != 1 || manifest.Manifests[0].Annotations[annotationName] != version {
		t.Fatalf("%+v, %v", manifest, err)
	}
	index, err := all.ImageIndex(manifest.Manifests[0].Digest)
	if err != nil {
		t.Fatal(err)
	}
	return index, manifest.Manifests[0].Digest
}

// check holds an image to what the Pods of the manifests need, and to no more.
func check(t *testing.T, want image, built v1.Image, architecture, version string) {
	t.Helper()
	file, err := built.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	config := file.Config
	program := "/ko-app/" + want.name
	if file.OS != "linux" || file.Architecture != architecture || config.User != base.User ||
		!slices.Equal(config.Entrypoint, []string{program}) || len(config.Cmd) > 0 || len(config.Volumes) > 0 || len(config.ExposedPorts) > 0 {
		t.Errorf("%s: %+v", architecture, config)
	}
	for key, value := range map[string]string{"title": want.name, "version": version, "source": source, "licenses": license} {
		if got := config.Labels["org.opencontainers.image."+key]; got != value {
			t.Errorf("label %s is %q", key, got)
		}
	}
	links := map[string]string{}
	runs := []string{}
	files := tar.NewReader(mutate.Extract(built))
	for {
		header, err := files.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		switch {
		case header.Uid != 0 || header.Gid != 0:
			t.Errorf("%s belongs to %d:%d", header.Name, header.Uid, header.Gid)
		case header.Typeflag == tar.TypeSymlink:
			links[header.Name] = header.Linkname
		case header.Name == "tmp":
		case header.Mode&0o6022 != 0:
			t.Errorf("%s has mode %o", header.Name, header.Mode)
		case header.Typeflag == tar.TypeReg && header.Mode&0o111 != 0:
			runs = append(runs, "/"+strings.TrimPrefix(header.Name, "/"))
		}
	}
	if !slices.Equal(runs, []string{program}) {
		t.Errorf("what can be run is %q", runs)
	}
	for _, link := range want.links {
		if links[link.Path] != link.Target {
			t.Errorf("%s leads to %q", link.Path, links[link.Path])
		}
	}
}

// checkSBOM wants an SPDX document that names packages.
func checkSBOM(t *testing.T, path string) {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var document struct {
		Version  string `json:"spdxVersion"`
		Packages []struct {
			Name string `json:"name"`
		} `json:"packages"`
	}
	if err := json.Unmarshal(content, &document); err != nil || !strings.HasPrefix(document.Version, "SPDX-") || len(document.Packages) == 0 {
		t.Errorf("%s is no SBOM: %+v, %v", filepath.Base(path), document, err)
	}
}
