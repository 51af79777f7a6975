// Package arch holds the import rules of the project as data and checks them
// against what the go command says. There is nothing here but the test.
//
//	words → rules → work → adapters → joins: a package imports only what stands
//	on its own layer or above it in this table, and only what its row allows.
package arch

import (
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"path"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/metacontroller-solo/solo"

// layer is the distance from the words. A package never imports a higher one.
type layer int

const (
	words layer = iota
	rules
	work
	adapters
	joins
	tests
)

// row is one package, or a tree of packages when the path ends in "/...".
type row struct {
	path  string
	layer layer
}

// table says where every package of the module belongs. A new package needs a
// row, so that its place is a decision and not an accident.
var table = []row{
	{"pkg/api/...", words},
	{"pkg/object", words},
	{"pkg/logging", words},
	{"pkg/metrics", words},
	{"pkg/version", words},
	{"config/crd", words},

	{"pkg/controller/hook", rules},
	{"pkg/controller/hook/wire", rules},
	{"pkg/controller/adopt", rules},
	{"pkg/controller/related", rules},
	{"pkg/controller/decorator/change", rules},
	{"pkg/controller/plan", rules},
	{"pkg/controller/revision", rules},
	{"pkg/controller/plan/merge", rules},
	{"pkg/controller/plan/owned", rules},
	{"pkg/guard/identify", rules},
	{"pkg/guard/attempt", rules},
	{"pkg/guard/decide", rules},
	{"pkg/guard/shard", rules},
	{"pkg/guard/inspect", rules},
	{"pkg/guard/certificate", rules},

	{"pkg/controller/apply", work},
	{"pkg/controller/syncer", work},
	{"pkg/controller/engine", work},
	{"pkg/controller/declare", work},
	{"pkg/controller/composite", work},
	{"pkg/controller/decorator", work},
	{"pkg/guard/webhook", work},
	{"pkg/guard/claim", work},
	{"pkg/guard/manifest", work},
	{"pkg/guard/finding", work},
	{"pkg/guard/check", work},
	{"pkg/guard/explain", work},
	{"pkg/guard/verify", work},
	{"pkg/guard/scan", work},

	{"pkg/controller/hook/call", adapters},
	{"pkg/controller/discovery", adapters},
	{"pkg/controller/watch", adapters},
	{"pkg/controller/cluster", adapters},
	{"pkg/singleton", adapters},
	{"pkg/singleton/mark", adapters},
	{"pkg/guard/audit", adapters},
	{"pkg/guard/owner", adapters},
	{"pkg/guard/announce", adapters},
	{"pkg/guard/pin", adapters},
	{"pkg/guard/serving", adapters},

	{"cmd/...", joins},
	{"test/...", tests},
}

// impure are packages that a rule must not touch: clients, HTTP, loggers,
// contexts. The clock is looked for by its own test.
var impure = []string{
	"context", "net", "net/http", "os", "os/exec", "log", "log/slog",
	"github.com/go-logr/logr", "k8s.io/klog/v2", "k8s.io/client-go/...", "sigs.k8s.io/controller-runtime/...",
	module + "/pkg/logging",
}

// strangers never see each other.
var strangers = [][2]string{
	{"pkg/controller/...", "pkg/guard/..."},
	{"pkg/guard/...", "pkg/controller/..."},
	{"cmd/controller/...", "pkg/guard/..."},
	{"cmd/guard/...", "pkg/controller/..."},
	{"pkg/controller/composite", "pkg/controller/decorator"},
	{"pkg/controller/decorator", "pkg/controller/composite"},
	{"cmd/...", "test/..."},
	{"pkg/...", "test/..."},
}

type goPackage struct {
	ImportPath string
	Imports    []string
}

// packages lists the module's packages with the imports of their own files;
// test files may import what they need.
func packages(t *testing.T) []goPackage {
	t.Helper()
	command := exec.Command("go", "list", "-json=ImportPath,Imports", module+"/...")
	command.Dir = "../.."
	output, err := command.Output()
	if err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			t.Fatalf("go list: %v\n%s", err, exit.Stderr)
		}
		t.Fatalf("go list: %v", err)
	}
	var all []goPackage
	decoder := json.NewDecoder(strings.NewReader(string(output)))
	for {
		var p goPackage
		err := decoder.Decode(&p)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatalf("go list: %v", err)
		}
		all = append(all, p)
	}
	if len(all) < 10 {
		t.Fatalf("go list found only %d packages", len(all))
	}
	return all
}

// matches says whether a path is the one of the pattern, or under it when the
// pattern ends in "/...".
func matches(pattern, name string) bool {
	if tree, ok := strings.CutSuffix(pattern, "/..."); ok {
		return name == tree || strings.HasPrefix(name, tree+"/")
	}
	return pattern == name
}

func relative(importPath string) (string, bool) {
	return strings.CutPrefix(importPath, module+"/")
}

// layerOf finds the row of a package; the longest pattern wins.
func layerOf(name string) (layer, bool) {
	best, found := row{}, false
	for _, r := range table {
		if matches(r.path, name) && len(r.path) > len(best.path) {
			best, found = r, true
		}
	}
	return best.layer, found
}

func TestEveryPackageHasAPlace(t *testing.T) {
	for _, p := range packages(t) {
		name, _ := relative(p.ImportPath)
		if _, ok := layerOf(name); !ok {
			t.Errorf("%s stands in no row of the table: say where it belongs", name)
		}
	}
}

func TestEveryRowHasAPackage(t *testing.T) {
	all := packages(t)
	for _, r := range table {
		if !slices.ContainsFunc(all, func(p goPackage) bool {
			name, _ := relative(p.ImportPath)
			return matches(r.path, name)
		}) {
			t.Errorf("row %q matches no package: remove it", r.path)
		}
	}
}

func TestImportsPointDown(t *testing.T) {
	for _, p := range packages(t) {
		name, _ := relative(p.ImportPath)
		own, ok := layerOf(name)
		if !ok {
			continue
		}
		for _, imported := range p.Imports {
			target, ok := relative(imported)
			if !ok {
				continue
			}
			other, ok := layerOf(target)
			if !ok {
				continue
			}
			// Adapters satisfy the small interfaces that work declares, so they
			// know its types; work never knows an adapter.
			if other > own {
				t.Errorf("%s imports %s, which stands above it", name, target)
			}
		}
	}
}

func TestRulesArePure(t *testing.T) {
	for _, p := range packages(t) {
		name, _ := relative(p.ImportPath)
		if own, ok := layerOf(name); !ok || own != rules {
			continue
		}
		for _, imported := range p.Imports {
			for _, bad := range impure {
				if matches(bad, imported) {
					t.Errorf("%s is a rule and imports %s", name, imported)
				}
			}
		}
	}
}

func TestStrangers(t *testing.T) {
	for _, p := range packages(t) {
		name, _ := relative(p.ImportPath)
		for _, pair := range strangers {
			if !matches(pair[0], name) {
				continue
			}
			for _, imported := range p.Imports {
				if target, ok := relative(imported); ok && matches(pair[1], target) {
					t.Errorf("%s imports %s, of which it must not know", name, target)
				}
			}
		}
	}
}

func TestNamesSayWhatAPackageDoes(t *testing.T) {
	vague := []string{"common", "util", "utils", "helper", "helpers", "manager", "managers", "types", "misc", "shared"}
	for _, p := range packages(t) {
		if base := path.Base(p.ImportPath); slices.Contains(vague, base) {
			t.Errorf("%s: %q says nothing about what the package does", p.ImportPath, base)
		}
	}
}
