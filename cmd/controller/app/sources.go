package app

import (
	"context"
	"encoding/json"
	"errors"
	"sync"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/metacontroller-solo/solo/pkg/controller/hook/call"
	"github.com/metacontroller-solo/solo/pkg/controller/watch"
	"github.com/metacontroller-solo/solo/pkg/object"
)

// Kinds that hold the credentials of hooks.
var sourceKinds = map[string]object.Kind{
	call.KindSecret: {
		GroupVersionKind: schema.GroupVersionKind{Version: "v1", Kind: call.KindSecret}, Resource: "secrets", Namespaced: true,
	},
	call.KindConfigMap: {
		GroupVersionKind: schema.GroupVersionKind{Version: "v1", Kind: call.KindConfigMap}, Resource: "configmaps", Namespaced: true,
	},
}

// sources follows single Secrets and ConfigMaps. All who follow the same one share
// its watch, which ends with the last of them.
type sources struct{ caches *watch.Set }

func (s sources) Open(reference call.Reference) call.Source {
	options := watch.Options{Namespace: reference.Namespace, Name: reference.Name}
	return &source{reference: reference, cache: s.caches.Acquire(sourceKinds[reference.Kind], options)}
}

type source struct {
	reference call.Reference
	cache     *watch.Cache

	mu sync.Mutex // guards all below
	// content is what was decoded from the object last.
	content *call.Content
	decoded *object.Object
}

func (s *source) Read(ctx context.Context) (*call.Content, error) {
	if err := s.cache.WaitForSyncOrFailure(ctx); err != nil {
		return nil, err
	}
	found := s.cache.Get(s.reference.Namespace, s.reference.Name)
	if found == nil {
		return nil, call.ErrAbsent
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.decoded == found {
		return s.content, nil
	}
	content, err := decodeSource(s.reference.Kind, found.Body())
	if err != nil {
		return nil, err
	}
	s.decoded, s.content = found, content
	return content, nil
}

func (s *source) Close() { s.cache.Release() }

// decodeSource decodes a Secret, whose values are in base64, or a ConfigMap, where
// some are. What is wrong with it is not told: the text could have a part of it.
func decodeSource(kind, body string) (*call.Content, error) {
	var (
		coded struct {
			Data map[string][]byte `json:"data"`
		}
		plain struct {
			Data       map[string]string `json:"data"`
			BinaryData map[string][]byte `json:"binaryData"`
		}
		err error
	)
	if kind == call.KindSecret {
		err = json.Unmarshal([]byte(body), &coded)
	} else {
		err = json.Unmarshal([]byte(body), &plain)
		coded.Data = plain.BinaryData
		if coded.Data == nil {
			coded.Data = map[string][]byte{}
		}
		for key, value := range plain.Data {
			coded.Data[key] = []byte(value)
		}
	}
	if err != nil {
		return nil, errors.New("what is in it cannot be decoded")
	}
	return &call.Content{Data: coded.Data}, nil
}
