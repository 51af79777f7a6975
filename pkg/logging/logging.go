// Package logging is the one place for the keys of log lines and for how a
// program's logger is set up. Messages are constant; what varies is a value
// under one of these keys.
package logging

import (
	"flag"

	"github.com/go-logr/logr"
	"github.com/spf13/pflag"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"
)

// Keys of log lines.
const (
	KeyController = "controller"
	KeyParent     = "parent"
	KeyHook       = "hook"
	KeyPath       = "path"
	KeyResource   = "resource"
	KeyNamespace  = "namespace"
	KeyName       = "name"
	KeyUID        = "uid"
	KeyAddress    = "address"
	KeyVersion    = "version"
	KeyHolder     = "holder"
	KeyLease      = "lease"
	KeySince      = "since"
	KeyIdentity   = "identity"
	KeyPolicy     = "policy"
	KeyPhase      = "phase"
	KeyEpoch      = "epoch"
	KeyReason     = "reason"
	KeyCount      = "count"
	KeyFinding    = "finding"
	KeySeverity   = "severity"
	KeyObject     = "object"
	KeyChanges    = "changes"
	KeySerial     = "serial"
	KeyVerdict    = "verdict"
)

// BindFlags adds the --zap-* flags and returns the options that they fill.
// Defaults are zap's production ones.
func BindFlags(flags *pflag.FlagSet) *zap.Options {
	options := &zap.Options{}
	set := flag.NewFlagSet("zap", flag.ContinueOnError)
	options.BindFlags(set)
	flags.AddGoFlagSet(set)
	return options
}

// SetUp makes the logger of the program, and makes it the one of
// controller-runtime and of client-go too.
func SetUp(options *zap.Options) logr.Logger {
	logger := zap.New(zap.UseFlagOptions(options))
	ctrl.SetLogger(logger)
	klog.SetLogger(logger)
	return logger
}
