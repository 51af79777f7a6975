package merge_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/metacontroller-solo/solo/pkg/controller/plan/merge"
	"github.com/metacontroller-solo/solo/pkg/object"
)

func decode(t interface {
	Helper()
	Fatalf(string, ...any)
}, text string) map[string]any {
	t.Helper()
	value, err := object.Decode([]byte(text))
	if err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	out, ok := value.(map[string]any)
	if !ok {
		t.Fatalf("%s is no object", text)
	}
	return out
}

// whole is a whole object with these fields beside its identity. metadata of
// fields is added to it.
func whole(fields map[string]any) map[string]any {
	out := map[string]any{"apiVersion": "v1", "kind": "Thing"}
	metadata := map[string]any{"name": "a", "namespace": "ns"}
	for key, value := range fields {
		out[key] = value
	}
	if given, ok := fields["metadata"].(map[string]any); ok {
		for key, value := range given {
			metadata[key] = value
		}
	}
	out["metadata"] = metadata
	return out
}

// applied is observed with an annotation that remembers last.
func applied(t interface{ Fatal(...any) }, observed, last map[string]any) map[string]any {
	first, err := merge.First(last)
	if err != nil {
		t.Fatal(err)
	}
	text := first["metadata"].(map[string]any)["annotations"].(map[string]any)[object.LastAppliedAnnotation]
	out := map[string]any{}
	for key, value := range observed {
		out[key] = value
	}
	metadata := map[string]any{}
	for key, value := range observed["metadata"].(map[string]any) {
		metadata[key] = value
	}
	annotations := map[string]any{}
	if given, ok := metadata["annotations"].(map[string]any); ok {
		for key, value := range given {
			annotations[key] = value
		}
	}
	annotations[object.LastAppliedAnnotation] = text
	metadata["annotations"] = annotations
	out["metadata"] = metadata
	return out
}

// visible is content without what WithoutNoise leaves out.
func visible(content map[string]any) map[string]any { return object.WithoutNoise(content) }

func TestMerge(t *testing.T) {
	tests := []struct {
		name                    string
		observed, last, desired string // last "" is none
		want                    string // "" is observed: nothing to write
		outcome                 merge.Outcome
	}{
		// Objects.
		{"nothing changed", `{"a":1,"b":{"c":"d"}}`, `{"a":1,"b":{"c":"d"}}`, `{"a":1,"b":{"c":"d"}}`, ``, merge.Same},
		{"a number written otherwise", `{"a":1}`, `{"a":1.0}`, `{"a":1.0}`, ``, merge.Same},
		{"a value changed", `{"a":1}`, `{"a":1}`, `{"a":2}`, `{"a":2}`, merge.Changed},
		{"drift is repaired", `{"a":7}`, `{"a":1}`, `{"a":1}`, `{"a":1}`, merge.Changed},
		{"a missing field is set again", `{}`, `{"a":1}`, `{"a":1}`, `{"a":1}`, merge.Changed},
		{"a new field", `{"a":1}`, `{"a":1}`, `{"a":1,"b":2}`, `{"a":1,"b":2}`, merge.Changed},
		{"a removed field", `{"a":1,"b":2}`, `{"a":1,"b":2}`, `{"a":1}`, `{"a":1}`, merge.Changed},
		{"a removed object goes with the defaults in it", `{"p":{"get":"/","period":10}}`, `{"p":{"get":"/"}}`, `{}`, `{}`, merge.Changed},
		{"foreign fields stay", `{"a":1,"f":{"g":1},"b":{"c":1,"h":1}}`, `{"a":1,"b":{"c":1}}`, `{"a":2,"b":{"c":2}}`, `{"a":2,"f":{"g":1},"b":{"c":2,"h":1}}`, merge.Changed},
		{"a list became an object", `{"a":[1]}`, `{"a":[1]}`, `{"a":{"b":1}}`, `{"a":{"b":1}}`, merge.Changed},
		{"an object became a text", `{"a":{"b":1}}`, `{"a":{"b":1}}`, `{"a":"x"}`, `{"a":"x"}`, merge.Changed},
		{"a null removes what was applied", `{"a":1,"b":2}`, `{"a":1,"b":2}`, `{"a":1,"b":null}`, `{"a":1}`, merge.Changed},
		{"a null removes nothing else", `{"a":1,"b":2}`, `{"a":1,"b":null}`, `{"a":1,"b":null}`, ``, merge.Same},
		{"a null that is gone was nothing", `{"a":1,"b":2}`, `{"a":1,"b":null}`, `{"a":1}`, ``, merge.Same},
		{"a null of a field that is not there", `{"a":1}`, `{"a":1,"b":null}`, `{"a":1,"b":null}`, ``, merge.Same},

		// Memory.
		{"no annotation yet: it is written", `{"a":1}`, ``, `{"a":1}`, `{"a":1}`, merge.Forget},
		{"no annotation: what is not desired is somebody else's", `{"a":1,"b":2}`, ``, `{"a":2}`, `{"a":2,"b":2}`, merge.Changed},
		{"a field that is gone already is to be forgotten", `{"a":1}`, `{"a":1,"b":2}`, `{"a":1}`, `{"a":1}`, merge.Forget},
		{"an element that is gone already is to be forgotten", `{"l":[{"name":"a"}]}`, `{"l":[{"name":"a"},{"name":"b"}]}`, `{"l":[{"name":"a"}]}`,
			`{"l":[{"name":"a"}]}`, merge.Forget},
		{"what somebody else set to that value already is not taken over", `{"a":1,"b":2}`, `{"a":1}`, `{"a":1,"b":2}`, ``, merge.Same},

		// What the server leaves out.
		{"an env with an empty value", `{"env":[{"name":"A"}]}`, `{"env":[{"name":"A","value":""}]}`, `{"env":[{"name":"A","value":""}]}`, ``, merge.Same},
		{"false, 0, empty list and object, null", `{"s":{}}`, `{"s":{"a":false,"b":0,"c":[],"d":{"e":""},"f":null}}`, `{"s":{"a":false,"b":0,"c":[],"d":{"e":""},"f":null}}`, ``, merge.Same},
		{"an empty value is set where it was another", `{"s":{"a":true}}`, `{"s":{"a":true}}`, `{"s":{"a":false}}`, `{"s":{"a":false}}`, merge.Changed},
		{"an empty value is set the first time", `{"s":{}}`, `{"s":{}}`, `{"s":{"a":{}}}`, `{"s":{"a":{}}}`, merge.Changed},
		{"creationTimestamp null in a template", `{"t":{"metadata":{"labels":{"a":"b"}}}}`, `{"t":{"metadata":{"creationTimestamp":null,"labels":{"a":"b"}}}}`,
			`{"t":{"metadata":{"creationTimestamp":null,"labels":{"a":"b"}}}}`, ``, merge.Same},
		{"creationTimestamp null in observed and desired", `{"t":{"metadata":{"creationTimestamp":null}}}`, `{"t":{"metadata":{"creationTimestamp":null}}}`, `{"t":{"metadata":{}}}`, `{"t":{"metadata":{"creationTimestamp":null}}}`, merge.Same},
		{"a quantity written otherwise", `{"resources":{"limits":{"cpu":"1","memory":"1Gi"}}}`, `{"resources":{"limits":{"cpu":"1000m","memory":"1024Mi"}}}`,
			`{"resources":{"limits":{"cpu":"1000m","memory":"1024Mi"}}}`, ``, merge.Same},
		{"a quantity as a number", `{"resources":{"limits":{"cpu":"2"}}}`, `{"resources":{"limits":{"cpu":2}}}`, `{"resources":{"limits":{"cpu":2}}}`, ``, merge.Same},
		{"another quantity", `{"resources":{"limits":{"cpu":"1"}}}`, `{"resources":{"limits":{"cpu":"1"}}}`, `{"resources":{"limits":{"cpu":"1001m"}}}`,
			`{"resources":{"limits":{"cpu":"1001m"}}}`, merge.Changed},
		{"elsewhere a text is a text", `{"data":{"cpu":"1"}}`, `{"data":{"cpu":"1000m"}}`, `{"data":{"cpu":"1000m"}}`, `{"data":{"cpu":"1000m"}}`, merge.Changed},

		{"a quantity in an unknown place that was applied in another form", `{"most":{"cpu":"64"}}`, `{"most":{"cpu":"64000m"}}`, `{"most":{"cpu":"64000m"}}`, ``, merge.Same},
		{"a quantity in an unknown place that was not applied", `{"most":{"cpu":"64"}}`, `{"most":{"cpu":"63"}}`, `{"most":{"cpu":"64000m"}}`, `{"most":{"cpu":"64000m"}}`, merge.Changed},
		{"the value of an env is a text", `{"env":[{"name":"A","value":"1"}]}`, `{"env":[{"name":"A","value":"1000m"}]}`, `{"env":[{"name":"A","value":"1000m"}]}`, `{"env":[{"name":"A","value":"1000m"}]}`, merge.Changed},
		{"a time in another form", `{"s":{"t":"2026-01-01T01:00:00.000000Z"}}`, `{"s":{"t":"2026-01-01T02:00:00+01:00"}}`, `{"s":{"t":"2026-01-01T02:00:00+01:00"}}`, ``, merge.Same},
		{"another time", `{"s":{"t":"2026-01-01T01:00:00Z"}}`, `{"s":{"t":"2026-01-01T02:00:00Z"}}`, `{"s":{"t":"2026-01-01T02:00:00Z"}}`, `{"s":{"t":"2026-01-01T02:00:00Z"}}`, merge.Changed},
		{"what was applied empty and somebody filled in stays", `{"s":{"a":{"b":1},"c":"x"}}`, `{"s":{"a":{},"c":""}}`, `{"s":{}}`, ``, merge.Same},

		{"an empty text that the server filled in", `{"s":{"policy":"Always","node":"n"}}`, `{"s":{"policy":"","node":""}}`, `{"s":{"policy":"","node":""}}`, ``, merge.Same},
		{"an empty text that is new", `{"s":{"policy":"Always"}}`, `{"s":{"policy":"Always"}}`, `{"s":{"policy":""}}`, `{"s":{"policy":""}}`, merge.Changed},
		{"an empty text in data is one", `{"data":{"a":"x"}}`, `{"data":{"a":""}}`, `{"data":{"a":""}}`, `{"data":{"a":""}}`, merge.Changed},
		{"an empty label is one", `{"metadata":{"labels":{"a":"x"}}}`, `{"metadata":{"labels":{"a":""}}}`, `{"metadata":{"labels":{"a":""}}}`, `{"metadata":{"labels":{"a":""}}}`, merge.Changed},
		{"an empty env value is one", `{"env":[{"name":"A","value":"x"}]}`, `{"env":[{"name":"A","value":""}]}`, `{"env":[{"name":"A","value":""}]}`, `{"env":[{"name":"A","value":""}]}`, merge.Changed},
		{"zeros that the server filled in", `{"p":{"periodSeconds":10},"ports":[{"port":80,"nodePort":31000,"targetPort":80}]}`, `{"p":{"periodSeconds":0},"ports":[{"port":80,"nodePort":0,"targetPort":0}]}`,
			`{"p":{"periodSeconds":0},"ports":[{"port":80,"nodePort":0,"targetPort":0}]}`, ``, merge.Same},
		{"no replicas are no replicas", `{"s":{"replicas":3}}`, `{"s":{"replicas":0}}`, `{"s":{"replicas":0}}`, `{"s":{"replicas":0}}`, merge.Changed},
		{"false is false", `{"s":{"paused":true}}`, `{"s":{"paused":false}}`, `{"s":{"paused":false}}`, `{"s":{"paused":false}}`, merge.Changed},
		{"a list that the server filled in", `{"s":{"policyTypes":["Ingress"]}}`, `{"s":{"policyTypes":[]}}`, `{"s":{"policyTypes":[]}}`, ``, merge.Same},

		// Free-form maps.
		{"labels of others outlive ours", `{"metadata":{"labels":{"ours":"1","theirs":"2"}}}`, `{"metadata":{"labels":{"ours":"1"}}}`, `{}`, `{"metadata":{"labels":{"theirs":"2"}}}`, merge.Changed},
		{"annotations of others outlive ours", `{"metadata":{"annotations":{"ours":"1","theirs":"2"}}}`, `{"metadata":{"annotations":{"ours":"1"}}}`, `{}`, `{"metadata":{"annotations":{"theirs":"2"}}}`, merge.Changed},
		{"labels go with the last one", `{"metadata":{"labels":{"ours":"1"}}}`, `{"metadata":{"labels":{"ours":"1"}}}`, `{}`, `{}`, merge.Changed},
		{"annotations of a template too", `{"t":{"metadata":{"annotations":{"o":"1","restartedAt":"x"}}}}`, `{"t":{"metadata":{"annotations":{"o":"1"}}}}`, `{"t":{}}`, `{"t":{"metadata":{"annotations":{"restartedAt":"x"}}}}`, merge.Changed},
		{"data of others outlives ours", `{"data":{"o":"1","t":"2"}}`, `{"data":{"o":"1"}}`, `{}`, `{"data":{"t":"2"}}`, merge.Changed},

		// Keyed lists.
		{"a sidecar stays", `{"c":[{"name":"side","image":"s"},{"name":"a","image":"1","policy":"Always"}]}`, `{"c":[{"name":"a","image":"1"}]}`,
			`{"c":[{"name":"a","image":"2"}]}`, `{"c":[{"name":"side","image":"s"},{"name":"a","image":"2","policy":"Always"}]}`, merge.Changed},
		{"a new element comes last", `{"c":[{"name":"a"},{"name":"x"}]}`, `{"c":[{"name":"a"}]}`, `{"c":[{"name":"b"},{"name":"a"}]}`, `{"c":[{"name":"a"},{"name":"x"},{"name":"b"}]}`, merge.Changed},
		{"a removed element goes", `{"c":[{"name":"a"},{"name":"b"},{"name":"x"}]}`, `{"c":[{"name":"a"},{"name":"b"}]}`, `{"c":[{"name":"b"}]}`, `{"c":[{"name":"b"},{"name":"x"}]}`, merge.Changed},
		{"another order is no change", `{"c":[{"name":"a"},{"name":"b"}]}`, `{"c":[{"name":"a"},{"name":"b"}]}`, `{"c":[{"name":"b"},{"name":"a"}]}`, ``, merge.Same},
		{"a removed list leaves what others added", `{"c":[{"name":"a"},{"name":"x"}]}`, `{"c":[{"name":"a"}]}`, `{}`, `{"c":[{"name":"x"}]}`, merge.Changed},
		{"a removed list", `{"c":[{"name":"a"}]}`, `{"c":[{"name":"a"}]}`, `{}`, `{}`, merge.Changed},
		{"two volumeMounts of one volume", `{"m":[{"name":"v","mountPath":"/a","readOnly":true},{"name":"v","mountPath":"/b"}]}`,
			`{"m":[{"name":"v","mountPath":"/a"},{"name":"v","mountPath":"/b"}]}`, `{"m":[{"name":"v","mountPath":"/a"},{"name":"v","mountPath":"/c"}]}`,
			`{"m":[{"name":"v","mountPath":"/a","readOnly":true},{"name":"v","mountPath":"/c"}]}`, merge.Changed},
		{"one port for TCP and UDP", `{"ports":[{"name":"t","port":53,"protocol":"TCP","targetPort":53},{"name":"u","port":53,"protocol":"UDP","targetPort":53}]}`,
			`{"ports":[{"name":"t","port":53,"protocol":"TCP"},{"name":"u","port":53,"protocol":"UDP"}]}`,
			`{"ports":[{"name":"t","port":53,"protocol":"TCP"},{"name":"u","port":53,"protocol":"UDP"}]}`, ``, merge.Same},
		{"the protocol of a port defaults to TCP", `{"ports":[{"port":53,"protocol":"TCP","nodePort":30000},{"port":53,"protocol":"UDP"}]}`,
			`{"ports":[{"port":53},{"port":53,"protocol":"UDP"}]}`, `{"ports":[{"port":53},{"port":53,"protocol":"UDP"}]}`, ``, merge.Same},
		{"only UDP goes", `{"ports":[{"port":53,"protocol":"TCP","nodePort":30000},{"port":53,"protocol":"UDP","nodePort":30001}]}`,
			`{"ports":[{"port":53},{"port":53,"protocol":"UDP"}]}`, `{"ports":[{"port":53}]}`, `{"ports":[{"port":53,"protocol":"TCP","nodePort":30000}]}`, merge.Changed},
		{"containerPort comes before name", `{"ports":[{"name":"a","containerPort":80,"protocol":"TCP"}]}`, `{"ports":[{"name":"a","containerPort":80}]}`,
			`{"ports":[{"name":"b","containerPort":80}]}`, `{"ports":[{"name":"b","containerPort":80,"protocol":"TCP"}]}`, merge.Changed},
		{"Ingress paths", `{"rules":[{"host":"h","http":{"paths":[{"path":"/a","pathType":"Prefix","backend":{"s":1}},{"path":"/b","pathType":"Prefix"}]}}]}`,
			`{"rules":[{"host":"h","http":{"paths":[{"path":"/a","pathType":"Prefix","backend":{"s":1}},{"path":"/b","pathType":"Prefix"}]}}]}`,
			`{"rules":[{"host":"h","http":{"paths":[{"path":"/a","pathType":"Prefix","backend":{"s":2}},{"path":"/b","pathType":"Prefix"}]}}]}`,
			`{"rules":[{"host":"h","http":{"paths":[{"path":"/a","pathType":"Prefix","backend":{"s":2}},{"path":"/b","pathType":"Prefix"}]}}]}`, merge.Changed},
		{"one name twice, with defaults", `{"env":[{"name":"A","value":"1","d":1},{"name":"A","value":"2","d":1}]}`, `{"env":[{"name":"A","value":"1"},{"name":"A","value":"2"}]}`,
			`{"env":[{"name":"A","value":"1"},{"name":"A","value":"2"}]}`, ``, merge.Same},
		{"one name twice, the second goes", `{"env":[{"name":"A","value":"1"},{"name":"A","value":"2"}]}`, `{"env":[{"name":"A","value":"1"},{"name":"A","value":"2"}]}`,
			`{"env":[{"name":"A","value":"1"}]}`, `{"env":[{"name":"A","value":"1"}]}`, merge.Changed},
		{"two backends on one port are told apart by name", `{"refs":[{"name":"a","port":80,"w":1},{"name":"b","port":80,"w":1}]}`, `{"refs":[{"name":"a","port":80},{"name":"b","port":80}]}`,
			`{"refs":[{"name":"b","port":80}]}`, `{"refs":[{"name":"b","port":80,"w":1}]}`, merge.Changed},
		{"80 is not \"80\"", `{"l":[{"port":80,"x":1}]}`, `{"l":[{"port":80}]}`, `{"l":[{"port":"80"}]}`, `{"l":[{"port":"80"}]}`, merge.Changed},

		// Other lists.
		{"a list of texts is replaced", `{"args":["a","b"]}`, `{"args":["a","b"]}`, `{"args":["b","c"]}`, `{"args":["b","c"]}`, merge.Changed},
		{"a list where one element lacks the key is replaced", `{"l":[{"name":"a","x":1},{"y":1}]}`, `{"l":[{"name":"a"}]}`, `{"l":[{"name":"a"}]}`, `{"l":[{"name":"a"}]}`, merge.Changed},
		{"a list without key in last applied is replaced", `{"l":[{"name":"a","x":1},{"name":"b"}]}`, `{"l":[{"y":"a"}]}`, `{"l":[{"name":"a"}]}`, `{"l":[{"name":"a"}]}`, merge.Changed},
		{"volumeClaimTemplates with defaults", `{"v":[{"apiVersion":"v1","kind":"PersistentVolumeClaim","metadata":{"name":"d","creationTimestamp":null},"spec":{"volumeMode":"Filesystem","resources":{"requests":{"storage":"1Gi"}}},"status":{"phase":"Pending"}}]}`,
			`{"v":[{"metadata":{"name":"d"},"spec":{"resources":{"requests":{"storage":"1024Mi"}}}}]}`, `{"v":[{"metadata":{"name":"d"},"spec":{"resources":{"requests":{"storage":"1024Mi"}}}}]}`, ``, merge.Same},
		{"a changed list without key loses what was in it", `{"v":[{"m":{"n":"d"},"s":{"a":1,"default":2}}]}`, `{"v":[{"m":{"n":"d"},"s":{"a":1}}]}`, `{"v":[{"m":{"n":"d"},"s":{"a":2}}]}`, `{"v":[{"m":{"n":"d"},"s":{"a":2}}]}`, merge.Changed},
		{"a list without key that lost an element", `{"v":[{"m":1},{"m":2}]}`, `{"v":[{"m":1},{"m":2}]}`, `{"v":[{"m":1}]}`, `{"v":[{"m":1}]}`, merge.Changed},
		{"a list of texts is no set", `{"args":["a","b"]}`, `{"args":["a","b"]}`, `{"args":["b","a"]}`, `{"args":["b","a"]}`, merge.Changed},
		{"a null element", `{"l":["a",null]}`, `{"l":["a",null]}`, `{"l":["a",null]}`, ``, merge.Same},
		{"a null element among objects", `{"l":[{"name":"a"}]}`, `{"l":[{"name":"a"}]}`, `{"l":[{"name":"a"},null]}`, `{"l":[{"name":"a"},null]}`, merge.Changed},
		{"a list where an object was", `{"a":{"b":1}}`, `{"a":{"b":1}}`, `{"a":[1]}`, `{"a":[1]}`, merge.Changed},
		{"numbers and texts of numbers", `{"a":1,"b":1}`, `{"a":1,"b":1}`, `{"a":1.0,"b":"1"}`, `{"a":1,"b":"1"}`, merge.Changed},
		{"a huge number", `{"a":123456789012345678901234567890}`, `{"a":123456789012345678901234567890}`, `{"a":123456789012345678901234567890}`, ``, merge.Same},
		{"another huge number", `{"a":123456789012345678901234567890}`, `{"a":123456789012345678901234567890}`, `{"a":123456789012345678901234567891}`, `{"a":123456789012345678901234567891}`, merge.Changed},
		{"keys with dots and slashes", `{"data":{"a.b/c":"1","a":{"b/c":"2"}}}`, `{"data":{"a.b/c":"1"}}`, `{"data":{"a.b/c":"3"}}`, `{"data":{"a.b/c":"3","a":{"b/c":"2"}}}`, merge.Changed},
		{"two protocols of a container's port", `{"ports":[{"name":"t","containerPort":53,"protocol":"TCP"},{"name":"u","containerPort":53,"protocol":"UDP"}]}`,
			`{"ports":[{"name":"t","containerPort":53},{"name":"u","containerPort":53,"protocol":"UDP"}]}`, `{"ports":[{"name":"t","containerPort":53},{"name":"u","containerPort":53,"protocol":"UDP"}]}`, ``, merge.Same},

		{"an empty list stays empty", `{"l":[]}`, `{"l":[]}`, `{"l":[]}`, ``, merge.Same},

		{"tolerations that the server appended", `{"tolerations":[{"operator":"Exists","x":1},{"key":"a"}]}`, `{"tolerations":[{"operator":"Exists"}]}`, `{"tolerations":[{"operator":"Exists"}]}`, ``, merge.Same},
		{"other tolerations", `{"tolerations":[{"operator":"Exists"},{"key":"a"}]}`, `{"tolerations":[{"operator":"Exists"}]}`, `{"tolerations":[{"operator":"Equal"}]}`, `{"tolerations":[{"operator":"Equal"}]}`, merge.Changed},
		{"what somebody appended elsewhere goes", `{"rules":[{"host":"a"},{"host":"b"}]}`, `{"rules":[{"host":"a"}]}`, `{"rules":[{"host":"a"}]}`, `{"rules":[{"host":"a"}]}`, merge.Changed},
		{"a list of objects that was applied empty is somebody else's", `{"rules":[{"verbs":["get"]}]}`, `{"rules":[]}`, `{"rules":[]}`, ``, merge.Same},
		{"a list of texts that was applied empty is not", `{"args":["a"]}`, `{"args":[]}`, `{"args":[]}`, `{"args":[]}`, merge.Changed},

		// Metadata.
		{"finalizers are a set of everybody", `{"metadata":{"finalizers":["theirs","ours"]}}`, `{"metadata":{"finalizers":["ours"]}}`, `{"metadata":{"finalizers":["new"]}}`, `{"metadata":{"finalizers":["theirs","new"]}}`, merge.Changed},
		{"two owners of one name", `{"metadata":{"ownerReferences":[{"name":"n","uid":"1","kind":"A"},{"name":"n","uid":"2","kind":"B"}]}}`, `{}`,
			`{"metadata":{"ownerReferences":[{"name":"n","uid":"2","kind":"B"}]}}`, ``, merge.Same},
		{"an echo of what was observed", `{"a":1,"metadata":{"uid":"u","resourceVersion":"7","generation":2,"creationTimestamp":"t"},"status":{"x":1}}`, `{"a":1}`,
			`{"a":1,"metadata":{"uid":"other","resourceVersion":"6","generation":1,"creationTimestamp":null,"managedFields":[{}],"selfLink":"/"},"status":{"x":2}}`, ``, merge.Same},
		{"status is nobody's business here", `{"status":{"x":1}}`, `{"status":{"x":1}}`, `{}`, ``, merge.Same},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			observed, desired := whole(decode(t, tt.observed)), whole(decode(t, tt.desired))
			if tt.last != "" {
				observed = applied(t, observed, whole(decode(t, tt.last)))
			}
			before, err := object.Encode([]any{observed, desired})
			if err != nil {
				t.Fatal(err)
			}
			got, err := merge.Merge(observed, desired)
			if err != nil {
				t.Fatal(err)
			}
			if got.Outcome != tt.outcome {
				t.Errorf("outcome %d, want %d: %v", got.Outcome, tt.outcome, got.Content)
			}
			if got.Outcome == merge.Same {
				return
			}
			if diff := cmp.Diff(visible(whole(decode(t, tt.want))), visible(got.Content)); diff != "" {
				t.Errorf("content (-want +got):\n%s", diff)
			}
			last, ok := merge.LastApplied(got.Content)
			if !ok || !object.Equal(last, object.WithoutNoise(desired)) {
				t.Errorf("remembers %v, want %v", last, desired)
			}
			if status := got.Content["status"]; !object.Equal(status, observed["status"]) {
				t.Errorf("status %v", status)
			}
			again, err := merge.Merge(got.Content, desired)
			if err != nil || again.Outcome != merge.Same {
				t.Errorf("a second merge: outcome %d, %v", again.Outcome, err)
			}
			after, err := object.Encode([]any{observed, desired})
			if err != nil || string(before) != string(after) {
				t.Errorf("an argument was changed:\n%s\n%s", before, after)
			}
		})
	}
}

func TestAnnotationThatCannotBeReadIsReplaced(t *testing.T) {
	for _, text := range []string{"{", "[]", "null", "x", "7"} {
		observed := whole(map[string]any{"a": int64(1), "metadata": map[string]any{"annotations": map[string]any{object.LastAppliedAnnotation: text}}})
		got, err := merge.Merge(observed, whole(map[string]any{"a": int64(1)}))
		if err != nil || got.Outcome != merge.Forget {
			t.Errorf("%q: outcome %d, %v", text, got.Outcome, err)
		}
	}
}

func TestAnotherVersionOfTheKindIsTheSameObject(t *testing.T) {
	observed := applied(t, whole(map[string]any{"a": int64(1)}), whole(map[string]any{"a": int64(1), "apiVersion": "v1beta1"}))
	got, err := merge.Merge(observed, whole(map[string]any{"a": int64(1), "apiVersion": "v1beta1"}))
	if err != nil || got.Outcome != merge.Same {
		t.Errorf("outcome %d, %v", got.Outcome, err)
	}
	got, err = merge.Merge(observed, whole(map[string]any{"a": int64(2), "apiVersion": "v1beta1"}))
	if err != nil || got.Outcome != merge.Changed || got.Content["apiVersion"] != "v1" {
		t.Errorf("outcome %d, %v, content %v", got.Outcome, err, got.Content)
	}
}

func TestFirstLeavesOutWhatTheServerWrites(t *testing.T) {
	echo := whole(map[string]any{"a": int64(1), "status": map[string]any{}, "metadata": map[string]any{
		"uid": "u", "resourceVersion": "1", "creationTimestamp": nil, "annotations": map[string]any{object.LastAppliedAnnotation: "{}", "b": "c"},
	}})
	got, err := merge.First(echo)
	if err != nil {
		t.Fatal(err)
	}
	want := decode(t, `{"apiVersion":"v1","kind":"Thing","a":1,"metadata":{"name":"a","namespace":"ns","annotations":{"b":"c"}}}`)
	last, _ := merge.LastApplied(got)
	if diff := cmp.Diff(want, last); diff != "" {
		t.Errorf("remembers (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(want, visible(got)); diff != "" {
		t.Errorf("content (-want +got):\n%s", diff)
	}
}
