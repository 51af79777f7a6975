package kit

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"

	"k8s.io/client-go/rest"

	"github.com/metacontroller-solo/solo/test/kit/process"
)

const (
	certManagerName   = "certmanager"
	certManagerModule = "github.com/cert-manager/cert-manager"
	// certManagerFolder is the nested module, seen from the root.
	certManagerFolder = "test/certmanager"
	certManagerCache  = "metacontroller-solo/certmanager"
	// certManagerUser is who cert-manager is to the API server. What its own
	// manifests grant it is not this project's matter.
	certManagerUser = "cert-manager"
)

// CertManager is cert-manager, its controllers and its CA injector, beside a
// control plane.
type CertManager struct {
	program, kubeconfig, log string
	// proc is what runs, or ran last.
	proc *process.Process
}

// CertManagerOptions say where cert-manager runs.
type CertManagerOptions struct {
	// Config reaches the API server; what it needs beside RBAC's grants is its
	// caller's matter.
	Config *rest.Config
	// Dir receives its kubeconfig and its log.
	Dir string
	// Progress receives a line about each thing worth knowing; nil discards.
	Progress io.Writer
}

// StartCertManager installs cert-manager's CRDs, starts cert-manager and returns
// when it is ready. It builds the program unless it is there already, from the
// module test/certmanager. ctx bounds the start; Stop ends it.
func StartCertManager(ctx context.Context, options CertManagerOptions) (*CertManager, error) {
	program, err := BuildCertManager(ctx, options.Progress)
	if err != nil {
		return nil, err
	}
	crds, err := CertManagerCRDs(ctx)
	if err != nil {
		return nil, err
	}
	if _, err := ApplyYAML(ctx, options.Config, crds); err != nil {
		return nil, fmt.Errorf("cannot install cert-manager's CRDs: %w", err)
	}
	c := &CertManager{
		program:    program,
		kubeconfig: filepath.Join(options.Dir, certManagerName+".kubeconfig"),
		log:        filepath.Join(options.Dir, certManagerName+".log"),
	}
	if err := WriteKubeconfig(c.kubeconfig, options.Config); err != nil {
		return nil, err
	}
	return c, c.Restart(ctx)
}

// CertManagerConfig is a client configuration for cert-manager, of a user whom no
// RBAC rule holds back.
func (cp *ControlPlane) CertManagerConfig() (*rest.Config, error) {
	return cp.UserConfig(certManagerUser, mastersGroup)
}

// Restart starts cert-manager after Stop and returns when it is ready.
func (c *CertManager) Restart(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	port, err := FreePort()
	if err != nil {
		return err
	}
	log, err := os.OpenFile(c.log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return fmt.Errorf("cannot open cert-manager's log: %w", err)
	}
	c.proc, err = process.Start(process.Spec{
		Name:   certManagerName,
		Path:   c.program,
		Args:   []string{"-kubeconfig=" + c.kubeconfig, "-health-probe-bind-address=" + address(port)},
		Env:    environment(),
		Stdout: log,
		Grace:  stopGrace,
	})
	if err != nil {
		return errors.Join(err, log.Close())
	}
	go func() {
		<-c.proc.Done()
		_ = log.Close()
	}()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	if err := c.proc.Until(ctx, answers200(client, "http://"+address(port)+"/readyz")); err != nil {
		c.proc.Kill()
		return fmt.Errorf("cannot start cert-manager: %w\n(its log: %s)", err, c.log)
	}
	return nil
}

// Pid is the process id of what runs, or ran last.
func (c *CertManager) Pid() int { return c.proc.Pid() }

// Stop ends cert-manager and returns when it is gone. The CRDs and all objects
// stay.
func (c *CertManager) Stop() { c.proc.Stop() }

// BuildCertManager returns the path of the program, which it builds unless it is
// there in this version, of cert-manager and of the module's own source.
func BuildCertManager(ctx context.Context, progress io.Writer) (string, error) {
	root, err := Root()
	if err != nil {
		return "", err
	}
	b := builder{
		what:     "cert-manager",
		module:   filepath.Join(root, certManagerFolder),
		programs: []program{{certManagerName, certManagerModule, ".", "1 minute"}},
		// Built as the product is, and with the same versions of what they share, so
		// that only cert-manager itself is left to compile.
		flags:    []string{"-ldflags", "-s -w"},
		progress: progress,
	}
	if b.versions, err = moduleVersions(ctx, b.module, b.programs); err != nil {
		return "", err
	}
	source, err := sourceHash(b.module)
	if err != nil {
		return "", err
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("cannot find the cache folder: %w; set HOME or XDG_CACHE_HOME", err)
	}
	b.dir = filepath.Join(cache, certManagerCache, fmt.Sprintf("%s-%s-%s-%s", b.versions[certManagerModule], source, runtime.GOOS, runtime.GOARCH))
	return filepath.Join(b.dir, certManagerName), b.buildMissing(ctx)
}

// sourceHash tells apart what a module's own files say.
func sourceHash(module string) (string, error) {
	files, err := filepath.Glob(filepath.Join(module, "*.go"))
	if err != nil {
		return "", fmt.Errorf("cannot list the source of %s: %w", module, err)
	}
	hash := sha256.New()
	for _, path := range append(files, filepath.Join(module, "go.mod"), filepath.Join(module, "go.sum")) {
		content, err := os.ReadFile(path)
		if err != nil {
			return "", fmt.Errorf("cannot read the source of %s: %w", module, err)
		}
		_, _ = fmt.Fprintf(hash, "%s %d\n%s", filepath.Base(path), len(content), content) // a hash takes everything
	}
	return hex.EncodeToString(hash.Sum(nil))[:12], nil
}

// CertManagerCRDs are the CRDs that cert-manager's module ships.
func CertManagerCRDs(ctx context.Context) ([]byte, error) {
	root, err := Root()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, goCommandLimit)
	defer cancel()
	cmd := exec.CommandContext(ctx, "go", "mod", "download", "-json", certManagerModule)
	cmd.Dir = filepath.Join(root, certManagerFolder)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	output, err := cmd.Output()
	if err != nil {
		return nil, goError("find the module "+certManagerModule, err, stderr.String())
	}
	var module struct{ Dir string }
	if err := json.Unmarshal(output, &module); err != nil {
		return nil, fmt.Errorf("cannot find the module %s: %w", certManagerModule, err)
	}
	files, err := filepath.Glob(filepath.Join(module.Dir, "deploy", "crds", "*.yaml"))
	if err != nil || len(files) == 0 {
		return nil, fmt.Errorf("cannot find CRDs in %s: %w", module.Dir, errors.Join(err, os.ErrNotExist))
	}
	slices.Sort(files)
	var documents [][]byte
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			return nil, fmt.Errorf("cannot read cert-manager's CRDs: %w", err)
		}
		documents = append(documents, content)
	}
	return bytes.Join(documents, []byte("\n---\n")), nil
}
