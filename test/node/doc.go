// Package node is a Kubernetes Node whose containers are processes of the host it runs on: no container runtime, no image, no network of
// its own. It is for tests and for trying things out on one machine.
//
//	                     ┌ VK PodController: informer ─> queue ─> provider ─> sandbox.Pod (processes, status, removal)
//	API server <─ link ──┼ VK NodeController and heartbeat: Node object, Lease
//	      │              └ Pods' own clients (kubeconfig, KUBERNETES_SERVICE_HOST)
//	      └──────────────> kubelet API: logs, exec (VK node/api over TLS)
//
// All of a node's traffic to the API server goes through one link, which CutOff severs and Heal restores: the Pods' processes live on, the
// control plane sees missing heartbeats. VK is github.com/virtual-kubelet/virtual-kubelet.
//
// # How a process differs from a container
//
// Image: the repository of the image's name chooses a local program from Options.Images.
//
// Files: there is no mount namespace. Each volume is a folder below Options.Dir, and each occurrence of a container's mountPath at the start
// of a path in its command, args and environment is replaced by that folder (environ.Mounts.Rewrite has the rule). A path that is
// compiled into a program is out of reach; in particular in-cluster client configuration does not find its token. Therefore a container
// that mounts its service account gets a kubeconfig that refers to those files, and KUBECONFIG set to it. HOME, TMPDIR and the default working
// folder are folders of the container; PATH is the node's.
//
// Network: each Pod has a loopback address of its own, and everything listens in the host's one network. A program should listen on its Pod's
// address (fieldRef status.podIP); one that listens on all addresses takes the port from all Pods.
//
// Isolation: there is none. Processes run as the node's user, securityContext and resource limits have no effect, a read-only mount is writable.
//
// Groups: a container is a process group. A process that leaves its group by setsid is not ended with its container.
package node
