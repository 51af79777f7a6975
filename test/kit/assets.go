package kit

import (
	"bytes"
	"context"
	"debug/buildinfo"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/metacontroller-solo/solo/test/kit/process"
)

// The programs of a control plane, by their file names.
const (
	etcdProgram              = "etcd"
	apiServerProgram         = "kube-apiserver"
	controllerManagerProgram = "kube-controller-manager"
	schedulerProgram         = "kube-scheduler"
)

const (
	// AssetsEnv names a folder with ready-made programs; controller-runtime's
	// envtest and its setup-envtest use the same variable.
	AssetsEnv = "KUBEBUILDER_ASSETS"

	etcdModule       = "go.etcd.io/etcd/server/v3"
	kubernetesModule = "k8s.io/kubernetes"

	// controlPlaneModule is the folder of the nested module, seen from the root.
	controlPlaneModule = "test/controlplane"
	cacheFolder        = "metacontroller-solo/controlplane"

	// goCommandLimit bounds the go command where it only reads a file.
	goCommandLimit = time.Minute
)

// program says how a program of the control plane is built.
type program struct {
	name     string
	module   string // whose version it carries
	pkg      string // the package to build
	duration string // about how long that takes on two cores
}

var programs = []program{
	{etcdProgram, etcdModule, etcdModule, "half a minute"},
	{apiServerProgram, kubernetesModule, kubernetesModule + "/cmd/kube-apiserver", "4 minutes"},
	{controllerManagerProgram, kubernetesModule, kubernetesModule + "/cmd/kube-controller-manager", "2 minutes"},
	{schedulerProgram, kubernetesModule, kubernetesModule + "/cmd/kube-scheduler", "half a minute"},
}

// Assets returns the folder with the control plane's programs: the one that
// KUBEBUILDER_ASSETS names, or else one in the user's cache folder, where it
// builds what is missing from the module test/controlplane and tells so on
// progress, a line before and after each program. Processes that call it at the
// same time build once.
func Assets(ctx context.Context, progress io.Writer) (dir string, err error) {
	if dir := os.Getenv(AssetsEnv); dir != "" {
		return dir, checkAssets(dir)
	}
	root, err := Root()
	if err != nil {
		return "", err
	}
	b := builder{what: "the control plane", module: filepath.Join(root, controlPlaneModule), programs: programs, progress: progress}
	if b.versions, err = moduleVersions(ctx, b.module, b.programs); err != nil {
		return "", err
	}
	b.flags = []string{"-trimpath", "-ldflags", linkerFlags(b.versions[kubernetesModule])}
	b.env = []string{"CGO_ENABLED=0"}
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("cannot find the cache folder: %w; set %s to a folder with the control plane's programs", err, AssetsEnv)
	}
	b.dir = filepath.Join(cache, cacheFolder, fmt.Sprintf("%s-%s-%s", b.versions[kubernetesModule], runtime.GOOS, runtime.GOARCH))
	return b.dir, b.buildMissing(ctx)
}

// Root is the root folder of this project's source: the first one upwards from
// the working folder, or else from this file, that holds the module of the
// control plane.
func Root() (string, error) {
	var starts []string
	if wd, err := os.Getwd(); err == nil {
		starts = append(starts, wd)
	}
	if _, file, _, ok := runtime.Caller(0); ok && filepath.IsAbs(file) {
		starts = append(starts, filepath.Dir(file))
	}
	for _, dir := range starts {
		for {
			if exists(filepath.Join(dir, controlPlaneModule, "go.mod")) {
				return dir, nil
			}
			up := filepath.Dir(dir)
			if up == dir {
				break
			}
			dir = up
		}
	}
	return "", fmt.Errorf("cannot find the project's source (a folder with %s): run this inside a clone of it, or set %s", controlPlaneModule, AssetsEnv)
}

func checkAssets(dir string) error {
	for _, p := range programs {
		if err := checkProgram(filepath.Join(dir, p.name)); err != nil {
			return fmt.Errorf("cannot use %s=%s: %w; put an executable %s there, or unset %s to have it built", AssetsEnv, dir, err, p.name, AssetsEnv)
		}
	}
	return nil
}

func checkProgram(path string) error {
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return fmt.Errorf("%s is not there", filepath.Base(path))
	case err != nil:
		return err
	case info.IsDir() || info.Mode()&0o111 == 0:
		return fmt.Errorf("%s is not executable", filepath.Base(path))
	}
	return nil
}

// moduleVersions reads which version of which module the module in a folder
// requires. Those of the programs must be among them.
func moduleVersions(ctx context.Context, module string, programs []program) (map[string]string, error) {
	goMod := filepath.Join(module, "go.mod")
	ctx, cancel := context.WithTimeout(ctx, goCommandLimit)
	defer cancel()
	cmd := exec.CommandContext(ctx, "go", "mod", "edit", "-json", goMod)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, goError("read "+goMod, err, stderr.String())
	}
	var file struct {
		Require []struct{ Path, Version string }
	}
	if err := json.Unmarshal(out, &file); err != nil {
		return nil, fmt.Errorf("cannot read %s: %w", goMod, err)
	}
	versions := make(map[string]string, len(file.Require))
	for _, r := range file.Require {
		versions[r.Path] = r.Version
	}
	for _, p := range programs {
		if versions[p.module] == "" {
			return nil, fmt.Errorf("cannot build %s: %s does not require %s", p.name, goMod, p.module)
		}
	}
	return versions, nil
}

func goError(what string, err error, detail string) error {
	if errors.Is(err, exec.ErrNotFound) {
		return fmt.Errorf("cannot %s: the go command is not in PATH: install Go (https://go.dev/dl), or set %s to a folder with the control plane's programs", what, AssetsEnv)
	}
	if detail = strings.TrimSpace(detail); detail != "" {
		return fmt.Errorf("cannot %s: %w: %s", what, err, detail)
	}
	return fmt.Errorf("cannot %s: %w", what, err)
}

// builder builds programs into the cache folder.
type builder struct {
	what     string // is built, for messages
	module   string // folder of the nested module
	dir      string // folder of the programs
	programs []program
	versions map[string]string
	flags    []string // of go build, beside the output
	env      []string // beside this process's own
	progress io.Writer
}

func (b builder) buildMissing(ctx context.Context) error {
	if len(b.missing()) == 0 {
		return nil
	}
	if err := os.MkdirAll(b.dir, 0o755); err != nil {
		return fmt.Errorf("cannot create the cache folder: %w", err)
	}
	lock, err := b.lock(ctx)
	if err != nil {
		return err
	}
	defer lock.Release()
	for _, p := range b.missing() { // another process may have built some meanwhile
		if err := b.build(ctx, p); err != nil {
			return err
		}
	}
	return nil
}

// missing returns the programs that are not there in the version that the module
// requires.
func (b builder) missing() []program {
	var missing []program
	for _, p := range b.programs {
		path := filepath.Join(b.dir, p.name)
		if checkProgram(path) != nil || builtVersion(path, p.module) != b.versions[p.module] {
			missing = append(missing, p)
		}
	}
	return missing
}

// builtVersion is the version of a module that went into a program.
func builtVersion(path, module string) string {
	info, err := buildinfo.ReadFile(path)
	if err != nil {
		return ""
	}
	if info.Main.Path == module {
		return info.Main.Version
	}
	for _, dep := range info.Deps {
		if dep.Path == module {
			return dep.Version
		}
	}
	return ""
}

func (b builder) lock(ctx context.Context) (*process.Lock, error) {
	path := filepath.Join(b.dir, ".lock")
	once, cancel := context.WithCancel(ctx)
	cancel()
	lock, err := process.Acquire(once, path)
	var locked *process.LockedError
	if errors.As(err, &locked) {
		b.say("waiting for process %d, which builds %s into %s", locked.Pid, b.what, b.dir)
		lock, err = process.Acquire(ctx, path)
	}
	if err != nil {
		return nil, fmt.Errorf("cannot build %s: %w", b.what, err)
	}
	return lock, nil
}

func (b builder) build(ctx context.Context, p program) error {
	version := b.versions[p.module]
	what := fmt.Sprintf("build %s %s", p.name, version)
	b.say("building %s %s (first time only, about %s) …", p.name, version, p.duration)
	begin := time.Now()

	goProgram, err := exec.LookPath("go")
	if err != nil {
		return goError(what, err, "")
	}
	part, err := os.MkdirTemp(b.dir, ".part-")
	if err != nil {
		return fmt.Errorf("cannot %s: %w", what, err)
	}
	defer func() { _ = os.RemoveAll(part) }()
	built := filepath.Join(part, p.name)
	run, err := process.Start(process.Spec{
		Name: "go build",
		Path: goProgram,
		Args: slices.Concat([]string{"build"}, b.flags, []string{"-o", built, p.pkg}),
		// The build must not depend on whose build this is part of.
		Env: slices.Concat(os.Environ(), b.env, []string{"GOWORK=off", "GOOS=" + runtime.GOOS, "GOARCH=" + runtime.GOARCH}),
		Dir: b.module,
	})
	if err != nil {
		return fmt.Errorf("cannot %s: %w", what, err)
	}
	select {
	case <-run.Done():
	case <-ctx.Done():
		run.Stop()
		return fmt.Errorf("cannot %s: %w", what, context.Cause(ctx))
	}
	if status, _ := run.Status(); status.Code != 0 {
		return fmt.Errorf("cannot %s: %w", what, run.ExitError())
	}
	if err := os.Rename(built, filepath.Join(b.dir, p.name)); err != nil {
		return fmt.Errorf("cannot %s: %w", what, err)
	}
	b.say("built %s %s in %s", p.name, version, time.Since(begin).Round(time.Second))
	return nil
}

// linkerFlags stamp Kubernetes' version into its programs, which otherwise call
// themselves v0.0.0; etcd, which has no such package, ignores them.
func linkerFlags(version string) string {
	const pkg = "k8s.io/component-base/version."
	major, rest, _ := strings.Cut(strings.TrimPrefix(version, "v"), ".")
	minor, _, _ := strings.Cut(rest, ".")
	return fmt.Sprintf("-s -w -X %sgitVersion=%s -X %sgitMajor=%s -X %sgitMinor=%s", pkg, version, pkg, major, pkg, minor)
}

func (b builder) say(format string, args ...any) {
	if b.progress != nil {
		_, _ = fmt.Fprintf(b.progress, format+"\n", args...)
	}
}
