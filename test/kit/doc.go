// Package kit gives tests and the local cluster a real Kubernetes control plane
// and what goes with it.
//
//	Assets           -> the programs, built once from the module test/controlplane
//	Start(Options)   -> ControlPlane: etcd <- kube-apiserver(s) <- kube-controller-manager, kube-scheduler
//	Main, Shared     -> one control plane for the tests of a package
//	Namespace, ApplyYAML, Eventually, Faults  -> what a test does with it
//	HookServer       -> a server of hooks, with faults
//	Build, Run       -> a program of this project under test
//
// Everything listens on loopback, every connection is TLS that is verified, and
// every client is authenticated. Nothing outlives the process that started it
// (see package process for what that means on which system).
package kit
