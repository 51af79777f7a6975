// This program builds the images of the controller and of the guard into OCI layouts
// on disk, by ko, without a daemon or a registry.
//
//	base ─> KOCACHE/img, an OCI layout ─ ko build ─> DIR/controller, DIR/guard, DIR/sbom
//
// ko wants its base image from a registry. One that is named by its digest it takes
// from its cache before it asks anybody, and that cache is an OCI layout.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"

	"github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/match"

	"github.com/metacontroller-solo/solo/test/images/base"
)

// image is one image of the project.
type image struct {
	name, description string
	links             []base.Link
}

var images = []image{
	{"controller", "A Metacontroller that holds a lease before it syncs anything", []base.Link{
		// Where the public image has it, so that its manifests work.
		{Path: "usr/bin/metacontroller", Target: "/ko-app/controller"},
	}},
	{"guard", "Keeps at most one Metacontroller active in a cluster", nil},
}

var platforms = []v1.Platform{{OS: "linux", Architecture: "amd64"}, {OS: "linux", Architecture: "arm64"}}

const (
	// baseName is what the images say that they are built on. Nobody is asked for it.
	baseName = "metacontroller-solo.invalid/base"
	source   = "https://github.com/metacontroller-solo/solo"
	license  = "Apache-2.0"
	// annotationName is the tag of an image in a layout.
	annotationName = "org.opencontainers.image.ref.name"
)

func main() {
	root := flag.String("root", ".", "Folder of the repository.")
	dir := flag.String("dir", "dist/images", "Folder to build into; what is in it is replaced.")
	version := flag.String("version", "devel", "Version of the programs, and tag of the images.")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := Build(ctx, *root, *dir, *version); err != nil {
		fmt.Fprintln(os.Stderr, "images:", err)
		os.Exit(1)
	}
}

// Build builds all images.
func Build(ctx context.Context, root, dir, version string) error {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return err
	}
	if err := os.RemoveAll(dir); err != nil {
		return fmt.Errorf("cannot remove what was built before: %w", err)
	}
	cache, err := os.MkdirTemp("", "ko-cache-")
	if err != nil {
		return fmt.Errorf("cannot make a folder for ko: %w", err)
	}
	defer func() { _ = os.RemoveAll(cache) }()
	for _, one := range images {
		if err := one.build(ctx, root, dir, cache, version); err != nil {
			return fmt.Errorf("cannot build image %q: %w", one.name, err)
		}
	}
	return nil
}

func (i image) build(ctx context.Context, root, dir, cache, version string) error {
	index, err := base.Index(base.Options{Links: i.links, Platforms: platforms})
	if err != nil {
		return err
	}
	digest, err := index.Digest()
	if err != nil {
		return err
	}
	if err := keep(filepath.Join(cache, "img"), index); err != nil {
		return fmt.Errorf("cannot keep the base image: %w", err)
	}
	into := filepath.Join(dir, i.name)
	arguments := []string{
		"tool", "-modfile=test/images/go.mod", "ko", "build", "--push=false", "--base-import-paths",
		"--oci-layout-path=" + into, "--sbom=spdx", "--sbom-dir=" + filepath.Join(dir, "sbom"), "--image-user=" + base.User,
	}
	for key, value := range map[string]string{
		"title": i.name, "description": i.description, "source": source, "licenses": license, "version": version,
	} {
		arguments = append(arguments, fmt.Sprintf("--image-label=org.opencontainers.image.%s=%s", key, value))
	}
	ko := exec.CommandContext(ctx, "go", append(arguments, "./cmd/"+i.name)...)
	ko.Dir, ko.Stderr = root, os.Stderr
	ko.Env = append(os.Environ(),
		"KOCACHE="+cache, "KO_DOCKER_REPO=ghcr.io/metacontroller-solo", "KO_DEFAULTBASEIMAGE="+baseName+"@"+digest.String(), "VERSION="+version)
	if err := ko.Run(); err != nil {
		return fmt.Errorf("ko: %w", err)
	}
	return name(into, version)
}

// keep puts an index into a layout, and its images beside it: ko looks for them there.
func keep(path string, index v1.ImageIndex) error {
	into, err := layout.FromPath(path)
	if errors.Is(err, os.ErrNotExist) {
		into, err = layout.Write(path, empty.Index)
	}
	if err != nil {
		return err
	}
	if err := into.AppendIndex(index); err != nil {
		return err
	}
	manifest, err := index.IndexManifest()
	if err != nil {
		return err
	}
	for _, one := range manifest.Manifests {
		image, err := index.Image(one.Digest)
		if err != nil {
			return err
		}
		if err := into.AppendImage(image); err != nil {
			return err
		}
	}
	return nil
}

// name gives the one image of a layout its tag.
func name(path, tag string) error {
	in, err := layout.FromPath(path)
	if err != nil {
		return err
	}
	all, err := in.ImageIndex()
	if err != nil {
		return err
	}
	manifest, err := all.IndexManifest()
	if err != nil {
		return err
	}
	if len(manifest.Manifests) != 1 {
		return fmt.Errorf("the layout has %d images", len(manifest.Manifests))
	}
	digest := manifest.Manifests[0].Digest
	index, err := all.ImageIndex(digest)
	if err != nil {
		return err
	}
	fmt.Printf("%s:%s@%s\n", filepath.Base(path), tag, digest)
	return in.ReplaceIndex(index, match.Digests(digest), layout.WithAnnotations(map[string]string{annotationName: tag}))
}
