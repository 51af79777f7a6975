// Package volume makes a Pod's volumes as folders on the host.
//
//	Volume ──> Collect (asks a Source for Secrets, ConfigMaps, tokens) ──> Payload ──> Write (atomic)
//
// Collect is asked again and again by its caller, which is how a change of a Secret reaches the files.
package volume

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"

	corev1 "k8s.io/api/core/v1"
)

// Modes of files for which neither the item nor the volume sets one (API defaults).
const (
	defaultMode      fs.FileMode = 0o644
	defaultTokenPath             = "token"
)

// ErrNotFound is what a Source wraps when an object does not exist.
var ErrNotFound = errors.New("not found")

// ErrUnsupported is wrapped by errors about volumes that this node can never provide.
var ErrUnsupported = errors.New("not supported by this node, whose containers are host processes")

// Source fetches what volumes are made of. Its names are in the Pod's namespace.
type Source interface {
	Secret(ctx context.Context, name string) (map[string][]byte, error)
	ConfigMap(ctx context.Context, name string) (map[string][]byte, error)
	// Token returns a token of the Pod's service account that is bound to the Pod and good for a while yet.
	Token(ctx context.Context, projection *corev1.ServiceAccountTokenProjection) (string, error)
	// Field and Resource resolve the downward API.
	Field(path string) (string, error)
	Resource(selector *corev1.ResourceFieldSelector) (string, error)
}

// Kind says how a volume is provided.
type Kind int

const (
	// Written volumes are folders that Collect fills and that change with their sources.
	Written Kind = iota + 1
	// Empty volumes are folders that the Pod's processes fill.
	Empty
	// Host volumes are paths of the host.
	Host
)

// KindOf sorts a volume. The error wraps ErrUnsupported.
func KindOf(v *corev1.Volume) (Kind, error) {
	switch {
	case v.Secret != nil, v.ConfigMap != nil, v.DownwardAPI != nil:
		return Written, nil
	case v.Projected != nil:
		for _, source := range v.Projected.Sources {
			if source.Secret == nil && source.ConfigMap == nil && source.DownwardAPI == nil && source.ServiceAccountToken == nil {
				return 0, fmt.Errorf("volume %q has a projected source of a kind that is %w", v.Name, ErrUnsupported)
			}
		}
		return Written, nil
	case v.EmptyDir != nil, v.VolumeSource == corev1.VolumeSource{}:
		return Empty, nil
	case v.HostPath != nil:
		return Host, nil
	}
	return 0, fmt.Errorf("volume %q is of a kind that is %w", v.Name, ErrUnsupported)
}

// Collect returns the files of a Written volume. An object that does not exist and is not optional gives an error that names it.
func Collect(ctx context.Context, v *corev1.Volume, source Source) (Payload, error) {
	payload := Payload{}
	add := func(files Payload, err error) error {
		if err != nil {
			return fmt.Errorf("cannot provide volume %q: %w", v.Name, err)
		}
		maps.Copy(payload, files)
		return nil
	}
	switch {
	case v.Secret != nil:
		return payload, add(secret(ctx, source, v.Secret.SecretName, v.Secret.Items, v.Secret.DefaultMode, v.Secret.Optional))
	case v.ConfigMap != nil:
		return payload, add(configMap(ctx, source, v.ConfigMap.Name, v.ConfigMap.Items, v.ConfigMap.DefaultMode, v.ConfigMap.Optional))
	case v.DownwardAPI != nil:
		return payload, add(downward(source, v.DownwardAPI.Items, v.DownwardAPI.DefaultMode))
	case v.Projected != nil:
		for _, s := range v.Projected.Sources {
			mode := v.Projected.DefaultMode
			var err error
			switch {
			case s.Secret != nil:
				err = add(secret(ctx, source, s.Secret.Name, s.Secret.Items, mode, s.Secret.Optional))
			case s.ConfigMap != nil:
				err = add(configMap(ctx, source, s.ConfigMap.Name, s.ConfigMap.Items, mode, s.ConfigMap.Optional))
			case s.DownwardAPI != nil:
				err = add(downward(source, s.DownwardAPI.Items, mode))
			case s.ServiceAccountToken != nil:
				err = add(token(ctx, source, s.ServiceAccountToken, mode))
			}
			if err != nil {
				return nil, err
			}
		}
	}
	return payload, nil
}

func secret(ctx context.Context, source Source, name string, items []corev1.KeyToPath, mode *int32, optional *bool) (Payload, error) {
	data, err := source.Secret(ctx, name)
	return project("secret", name, data, err, items, mode, isTrue(optional))
}

func configMap(ctx context.Context, source Source, name string, items []corev1.KeyToPath, mode *int32, optional *bool) (Payload, error) {
	data, err := source.ConfigMap(ctx, name)
	return project("configmap", name, data, err, items, mode, isTrue(optional))
}

// project chooses the keys of an object: all of them, or the items under their paths.
func project(kind, name string, data map[string][]byte, err error, items []corev1.KeyToPath, mode *int32, optional bool) (Payload, error) {
	if errors.Is(err, ErrNotFound) && optional {
		return Payload{}, nil
	}
	if err != nil {
		return nil, err
	}
	payload := Payload{}
	if len(items) == 0 {
		for key, value := range data {
			payload[key] = File{Data: value, Mode: modeOf(nil, mode)}
		}
		return payload, nil
	}
	for _, item := range items {
		value, ok := data[item.Key]
		if !ok {
			if optional {
				continue
			}
			return nil, fmt.Errorf("%s %q has no key %q", kind, name, item.Key)
		}
		payload[item.Path] = File{Data: value, Mode: modeOf(item.Mode, mode)}
	}
	return payload, nil
}

func downward(source Source, items []corev1.DownwardAPIVolumeFile, mode *int32) (Payload, error) {
	payload := Payload{}
	for _, item := range items {
		var value string
		var err error
		switch {
		case item.FieldRef != nil:
			value, err = source.Field(item.FieldRef.FieldPath)
		case item.ResourceFieldRef != nil:
			value, err = source.Resource(item.ResourceFieldRef)
		}
		if err != nil {
			return nil, err
		}
		payload[item.Path] = File{Data: []byte(value), Mode: modeOf(item.Mode, mode)}
	}
	return payload, nil
}

func token(ctx context.Context, source Source, projection *corev1.ServiceAccountTokenProjection, mode *int32) (Payload, error) {
	value, err := source.Token(ctx, projection)
	if err != nil {
		return nil, err
	}
	path := projection.Path
	if path == "" {
		path = defaultTokenPath
	}
	return Payload{path: {Data: []byte(value), Mode: modeOf(nil, mode)}}, nil
}

func modeOf(item, volume *int32) fs.FileMode {
	switch {
	case item != nil:
		return fs.FileMode(*item).Perm()
	case volume != nil:
		return fs.FileMode(*volume).Perm()
	}
	return defaultMode
}

func isTrue(flag *bool) bool { return flag != nil && *flag }
