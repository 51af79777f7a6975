package volume

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"pgregory.net/rapid"
)

// list reads a volume through its names, as a container does.
func list(t interface{ Fatal(...any) }, dir string) map[string]string {
	got := map[string]string{}
	var walk func(string)
	walk = func(rel string) {
		entries, err := os.ReadDir(filepath.Join(dir, rel))
		if err != nil {
			t.Fatal(err)
		}
		for _, entry := range entries {
			if strings.HasPrefix(entry.Name(), "..") {
				continue
			}
			name := filepath.Join(rel, entry.Name())
			info, err := os.Stat(filepath.Join(dir, name))
			if err != nil {
				t.Fatal(err)
			}
			if info.IsDir() {
				walk(name)
				continue
			}
			data, err := os.ReadFile(filepath.Join(dir, name))
			if err != nil {
				t.Fatal(err)
			}
			got[filepath.ToSlash(name)] = fmt.Sprintf("%o %s", info.Mode().Perm(), data)
		}
	}
	walk("")
	return got
}

// Whatever is written after whatever, the volume holds exactly the last payload and no left-over folder.
func TestWrite(t *testing.T) {
	base := t.TempDir()
	n := 0
	rapid.Check(t, func(t *rapid.T) {
		n++
		dir := filepath.Join(base, fmt.Sprint(n))
		for _, payload := range rapid.SliceOfN(rapid.MapOf(
			rapid.SampledFrom([]string{"a", "b", "c", ".hidden", "d/x", "d/y/z"}),
			rapid.Custom(func(t *rapid.T) File {
				return File{Data: []byte(rapid.SampledFrom([]string{"", "1", "22"}).Draw(t, "data")), Mode: rapid.SampledFrom([]fs.FileMode{0o644, 0o600, 0o777}).Draw(t, "mode")}
			})), 1, 5).Draw(t, "payloads") {
			before := map[string]string{}
			if _, err := os.Stat(dir); err == nil {
				before = list(t, dir)
			}
			changed, err := Write(dir, payload)
			if err != nil {
				t.Fatal(err)
			}
			want := map[string]string{}
			for name, file := range payload {
				want[name] = fmt.Sprintf("%o %s", file.Mode, file.Data)
			}
			if diff := cmp.Diff(want, list(t, dir)); diff != "" {
				t.Fatal(diff)
			}
			if len(before) > 0 && changed == maps.Equal(before, want) {
				t.Fatalf("changed is %v", changed)
			}
			hidden, err := filepath.Glob(filepath.Join(dir, "..*"))
			if err != nil || len(hidden) != 2 {
				t.Fatalf("left over: %v, %v", hidden, err)
			}
		}
	})
}

func TestWriteRefuses(t *testing.T) {
	for _, name := range []string{"", "..", "../x", "/x", "a/../../x", "..data", "..x", "a//b", "a/"} {
		dir := t.TempDir()
		if _, err := Write(dir, Payload{name: {}}); err == nil {
			t.Errorf("%q is written: %v", name, list(t, dir))
		}
	}
}

// A reader never sees one file of an old and one of a new payload.
func TestWriteIsAtomic(t *testing.T) {
	dir := t.TempDir()
	write := func(i int) {
		value := File{Data: fmt.Append(nil, i), Mode: 0o644}
		if _, err := Write(dir, Payload{"a": value, "b": value}); err != nil {
			t.Error(err)
		}
	}
	write(0)
	stop := make(chan struct{})
	var readers sync.WaitGroup
	readers.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			// A container that wants both files as one opens the folder behind ..data once.
			data, err := filepath.EvalSymlinks(filepath.Join(dir, dataLink))
			if errors.Is(err, fs.ErrNotExist) {
				continue // it was replaced between two steps
			}
			if err != nil {
				t.Error(err)
				return
			}
			a, err1 := os.ReadFile(filepath.Join(data, "a"))
			b, err2 := os.ReadFile(filepath.Join(data, "b"))
			if err1 == nil && err2 == nil && string(a) != string(b) {
				t.Errorf("a is %s, b is %s", a, b)
				return
			}
			// A single name is there at all times.
			if _, err := os.ReadFile(filepath.Join(dir, "a")); err != nil && !errors.Is(err, fs.ErrNotExist) {
				t.Error(err)
			}
		}
	})
	for i := range 200 {
		write(i)
	}
	close(stop)
	readers.Wait()
}

type source struct{ objects map[string]map[string][]byte }

func (s source) get(name string) (map[string][]byte, error) {
	data, ok := s.objects[name]
	if !ok {
		return nil, fmt.Errorf("%q %w", name, ErrNotFound)
	}
	return data, nil
}
func (s source) Secret(_ context.Context, name string) (map[string][]byte, error) { return s.get(name) }
func (s source) ConfigMap(_ context.Context, name string) (map[string][]byte, error) {
	return s.get(name)
}
func (s source) Token(_ context.Context, p *corev1.ServiceAccountTokenProjection) (string, error) {
	return "token for " + p.Audience, nil
}
func (s source) Field(path string) (string, error)                        { return "field " + path, nil }
func (s source) Resource(r *corev1.ResourceFieldSelector) (string, error) { return r.Resource, nil }

func TestCollect(t *testing.T) {
	yes, ro, rw := true, int32(0o400), int32(0o600)
	from := source{map[string]map[string][]byte{"x": {"k": []byte("v"), "l": []byte("w")}}}
	ref := corev1.LocalObjectReference{Name: "x"}
	none := corev1.LocalObjectReference{Name: "none"}
	for _, c := range []struct {
		name   string
		volume corev1.VolumeSource
		want   Payload
		err    string
	}{
		{"all keys", corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "x", DefaultMode: &ro}}, Payload{"k": {[]byte("v"), 0o400}, "l": {[]byte("w"), 0o400}}, ""},
		{"items", corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: ref, Items: []corev1.KeyToPath{{Key: "k", Path: "a/b", Mode: &rw}}}}, Payload{"a/b": {[]byte("v"), 0o600}}, ""},
		{"missing", corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "none"}}, nil, `"none" not found`},
		{"missing, optional", corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "none", Optional: &yes}}, Payload{}, ""},
		{"missing key", corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: ref, Items: []corev1.KeyToPath{{Key: "z", Path: "z"}}}}, nil, `configmap "x" has no key "z"`},
		{"missing key, optional", corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: ref, Optional: &yes, Items: []corev1.KeyToPath{{Key: "z", Path: "z"}}}}, Payload{}, ""},
		{"downward", corev1.VolumeSource{DownwardAPI: &corev1.DownwardAPIVolumeSource{Items: []corev1.DownwardAPIVolumeFile{
			{Path: "f", FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.name"}}, {Path: "r", ResourceFieldRef: &corev1.ResourceFieldSelector{Resource: "limits.cpu"}},
		}}}, Payload{"f": {[]byte("field metadata.name"), 0o644}, "r": {[]byte("limits.cpu"), 0o644}}, ""},
		{"projected", corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{DefaultMode: &rw, Sources: []corev1.VolumeProjection{
			{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{Path: "token", Audience: "a"}},
			{ConfigMap: &corev1.ConfigMapProjection{LocalObjectReference: ref, Items: []corev1.KeyToPath{{Key: "k", Path: "ca.crt"}}}},
			{Secret: &corev1.SecretProjection{LocalObjectReference: none, Optional: &yes}},
			{DownwardAPI: &corev1.DownwardAPIProjection{Items: []corev1.DownwardAPIVolumeFile{{Path: "namespace", FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.namespace"}}}}},
		}}}, Payload{"token": {[]byte("token for a"), 0o600}, "ca.crt": {[]byte("v"), 0o600}, "namespace": {[]byte("field metadata.namespace"), 0o600}}, ""},
	} {
		v := &corev1.Volume{Name: "vol", VolumeSource: c.volume}
		if kind, err := KindOf(v); kind != Written || err != nil {
			t.Errorf("%s: kind %v, %v", c.name, kind, err)
		}
		got, err := Collect(context.Background(), v, from)
		if c.err != "" {
			if err == nil || !strings.Contains(err.Error(), c.err) || !strings.Contains(err.Error(), `"vol"`) {
				t.Errorf("%s: error %v, want %q", c.name, err, c.err)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s: %s", c.name, diff)
		}
	}
}

func TestKindOf(t *testing.T) {
	for _, c := range []struct {
		volume corev1.VolumeSource
		want   Kind
	}{
		{corev1.VolumeSource{}, Empty},
		{corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}, Empty},
		{corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/x"}}, Host},
		{corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{}}, 0},
		{corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{{ClusterTrustBundle: &corev1.ClusterTrustBundleProjection{}}}}}, 0},
	} {
		kind, err := KindOf(&corev1.Volume{Name: "v", VolumeSource: c.volume})
		if kind != c.want || (c.want == 0) != errors.Is(err, ErrUnsupported) {
			t.Errorf("%+v: %v, %v", c.volume, kind, err)
		}
	}
}
