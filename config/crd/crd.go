// Package crd is the CRD of SingletonPolicy as this version ships it, for a guard
// that compares the installed one with it.
package crd

import _ "embed" // For the file below.

// SingletonPolicy is the manifest, in YAML.
//
//go:embed guard.metacontroller.io_singletonpolicies.yaml
var SingletonPolicy []byte
