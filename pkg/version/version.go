// Package version says which build this is.
package version

import "runtime/debug"

// version is set by the linker: -X github.com/metacontroller-solo/solo/pkg/version.version=v1.2.3.
var version = ""

// String returns the version of this build: the one that the linker set, else
// the one that the go command recorded, else "devel".
func String() string {
	if version != "" {
		return version
	}
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" && info.Main.Version != "(devel)" {
		return info.Main.Version
	}
	return "devel"
}
