// Package environ computes what a container's process is started with: environment, command and arguments.
//
//	References(container) ──> names of Secrets and ConfigMaps, fetched by the caller
//	Build(container, Facts) ──> environment, then $(NAME) in command and arguments, then mount paths
//
// It is pure. Processes share the host's files, so there is no mount: Mounts.Rewrite puts the folder that holds a
// volume in the place of the path where the container expects it.
package environ

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// Names of the variables that every container gets, as in a cluster.
const (
	Hostname       = "HOSTNAME"
	ServiceHost    = "KUBERNETES_SERVICE_HOST"
	ServicePort    = "KUBERNETES_SERVICE_PORT"
	KubeConfigPath = "KUBECONFIG"
)

// MissingError says that a Secret, a ConfigMap or a key that is not optional does not exist.
type MissingError struct {
	Kind, Name, Key string
}

func (e *MissingError) Error() string {
	if e.Key != "" {
		return fmt.Sprintf("cannot find key %q in %s %q", e.Key, e.Kind, e.Name)
	}
	return fmt.Sprintf("cannot find %s %q", e.Kind, e.Name)
}

// Kinds of the objects that an environment refers to.
const (
	KindSecret    = "Secret"
	KindConfigMap = "ConfigMap"
)

// Facts are what a container's environment may refer to.
type Facts struct {
	Pod    *corev1.Pod
	PodIP  string
	HostIP string
	// Allocatable is the node's, the value of a limit that the container does not set.
	Allocatable corev1.ResourceList
	// Secrets and ConfigMaps hold the data of the objects named by References that exist.
	Secrets    map[string]map[string][]byte
	ConfigMaps map[string]map[string]string
	// Defaults are variables that the container's own replace.
	Defaults map[string]string
	// Mounts are the container's.
	Mounts Mounts
}

// References returns the names of the Secrets and ConfigMaps that the environment of container refers to.
func References(container *corev1.Container) (secrets, configMaps []string) {
	for _, from := range container.EnvFrom {
		if from.SecretRef != nil {
			secrets = append(secrets, from.SecretRef.Name)
		}
		if from.ConfigMapRef != nil {
			configMaps = append(configMaps, from.ConfigMapRef.Name)
		}
	}
	for _, env := range container.Env {
		if env.ValueFrom == nil {
			continue
		}
		if ref := env.ValueFrom.SecretKeyRef; ref != nil {
			secrets = append(secrets, ref.Name)
		}
		if ref := env.ValueFrom.ConfigMapKeyRef; ref != nil {
			configMaps = append(configMaps, ref.Name)
		}
	}
	return unique(secrets), unique(configMaps)
}

func unique(names []string) []string {
	slices.Sort(names)
	return slices.Compact(names)
}

// Process is what to start.
type Process struct {
	// Env is the whole environment, sorted, as NAME=value.
	Env []string
	// Command and Args have their $(NAME) and mount paths replaced; Command is empty if the image's is meant.
	Command, Args []string
	// WorkingDir is empty if the container sets none.
	WorkingDir string
}

// Build computes the process of container. The error is a *MissingError or says which reference it cannot resolve.
func Build(container *corev1.Container, facts Facts) (*Process, error) {
	env, err := variables(container, facts)
	if err != nil {
		return nil, err
	}
	lookup := func(name string) (string, bool) { value, ok := env[name]; return value, ok }
	process := &Process{WorkingDir: facts.Mounts.Rewrite(container.WorkingDir)}
	for _, word := range container.Command {
		process.Command = append(process.Command, facts.Mounts.Rewrite(Expand(word, lookup)))
	}
	for _, word := range container.Args {
		process.Args = append(process.Args, facts.Mounts.Rewrite(Expand(word, lookup)))
	}
	// Defaults name host paths already; only what the container says is in its own terms.
	all := maps.Clone(facts.Defaults)
	if all == nil {
		all = map[string]string{}
	}
	for name, value := range env {
		if _, isDefault := facts.Defaults[name]; isDefault && facts.Defaults[name] == value {
			continue
		}
		all[name] = facts.Mounts.Rewrite(value)
	}
	for _, name := range slices.Sorted(maps.Keys(all)) {
		process.Env = append(process.Env, name+"="+all[name])
	}
	return process, nil
}

// variables are the defaults, replaced by envFrom, replaced by env, in that order.
func variables(container *corev1.Container, facts Facts) (map[string]string, error) {
	env := map[string]string{}
	maps.Copy(env, facts.Defaults)
	for _, from := range container.EnvFrom {
		switch {
		case from.ConfigMapRef != nil:
			data, ok := facts.ConfigMaps[from.ConfigMapRef.Name]
			if !ok && !isTrue(from.ConfigMapRef.Optional) {
				return nil, &MissingError{Kind: KindConfigMap, Name: from.ConfigMapRef.Name}
			}
			for key, value := range data {
				env[from.Prefix+key] = value
			}
		case from.SecretRef != nil:
			data, ok := facts.Secrets[from.SecretRef.Name]
			if !ok && !isTrue(from.SecretRef.Optional) {
				return nil, &MissingError{Kind: KindSecret, Name: from.SecretRef.Name}
			}
			for key, value := range data {
				env[from.Prefix+key] = string(value)
			}
		}
	}
	lookup := func(name string) (string, bool) { value, ok := env[name]; return value, ok }
	for _, v := range container.Env {
		if v.ValueFrom == nil {
			env[v.Name] = Expand(v.Value, lookup)
			continue
		}
		value, ok, err := valueFrom(v.ValueFrom, container, facts)
		if err != nil {
			return nil, fmt.Errorf("cannot set variable %q: %w", v.Name, err)
		}
		if ok {
			env[v.Name] = value
		}
	}
	return env, nil
}

// valueFrom is false for an optional reference to what does not exist.
func valueFrom(from *corev1.EnvVarSource, container *corev1.Container, facts Facts) (string, bool, error) {
	switch {
	case from.FieldRef != nil:
		value, err := Field(from.FieldRef.FieldPath, facts.Pod, facts.PodIP, facts.HostIP)
		return value, err == nil, err
	case from.ResourceFieldRef != nil:
		value, err := Resource(from.ResourceFieldRef, container, facts.Pod, facts.Allocatable)
		return value, err == nil, err
	case from.ConfigMapKeyRef != nil:
		ref := from.ConfigMapKeyRef
		data, ok := facts.ConfigMaps[ref.Name]
		if !ok {
			return optional(ref.Optional, &MissingError{Kind: KindConfigMap, Name: ref.Name})
		}
		value, ok := data[ref.Key]
		if !ok {
			return optional(ref.Optional, &MissingError{Kind: KindConfigMap, Name: ref.Name, Key: ref.Key})
		}
		return value, true, nil
	case from.SecretKeyRef != nil:
		ref := from.SecretKeyRef
		data, ok := facts.Secrets[ref.Name]
		if !ok {
			return optional(ref.Optional, &MissingError{Kind: KindSecret, Name: ref.Name})
		}
		value, ok := data[ref.Key]
		if !ok {
			return optional(ref.Optional, &MissingError{Kind: KindSecret, Name: ref.Name, Key: ref.Key})
		}
		return string(value), true, nil
	}
	return "", false, fmt.Errorf("its source is of a kind that this node does not know")
}

func optional(flag *bool, missing error) (string, bool, error) {
	if isTrue(flag) {
		return "", false, nil
	}
	return "", false, missing
}

func isTrue(flag *bool) bool { return flag != nil && *flag }

// Expand replaces $(NAME) by the value that lookup finds; $$ stands for one dollar sign, and a name that is not found stays as it is
// (https://kubernetes.io/docs/tasks/inject-data-application/define-interdependent-environment-variables/).
func Expand(s string, lookup func(name string) (string, bool)) string {
	var out strings.Builder
	for {
		before, rest, found := strings.Cut(s, "$")
		out.WriteString(before)
		if !found {
			return out.String()
		}
		switch {
		case strings.HasPrefix(rest, "$"):
			out.WriteByte('$')
			s = rest[1:]
		case strings.HasPrefix(rest, "("):
			name, after, closed := strings.Cut(rest[1:], ")")
			if !closed {
				out.WriteByte('$')
				s = rest
				continue
			}
			if value, ok := lookup(name); ok {
				out.WriteString(value)
			} else {
				out.WriteString("$(" + name + ")")
			}
			s = after
		default:
			out.WriteByte('$')
			s = rest
		}
	}
}
