package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"

	"github.com/metacontroller-solo/solo/test/bench/workload"
)

const (
	requestTimeout = 30 * time.Second
	// watchTimeout is how long the API server keeps a watch: longer than any run.
	watchTimeout = 10 * time.Hour
	// watchRetry is the time between two tries to begin one.
	watchRetry = 100 * time.Millisecond
)

// api speaks JSON to an API server, without a limit of requests. The driver and
// the raw writer use it; nothing of the controller's is in it.
type api struct{ client rest.Interface }

func newAPI(config *rest.Config) (api, error) {
	config = rest.CopyConfig(config)
	config.QPS = -1
	config.NegotiatedSerializer = scheme.Codecs.WithoutConversion()
	config.ContentType, config.AcceptContentTypes = "application/json", "application/json"
	client, err := rest.UnversionedRESTClientFor(config)
	if err != nil {
		return api{}, fmt.Errorf("cannot make a client for %q: %w", config.Host, err)
	}
	return api{client}, nil
}

func thingsPath(namespace string) string {
	return "/apis/" + workload.APIVersion + "/namespaces/" + namespace + "/" + workload.Resource
}

func configMapsPath(namespace string) string {
	return "/api/v1/namespaces/" + namespace + "/configmaps"
}

func secretsPath(namespace string) string { return "/api/v1/namespaces/" + namespace + "/secrets" }

// do sends a request with a body, if there is one, and decodes the answer into
// out, if there is one.
func (a api) do(ctx context.Context, request *rest.Request, path string, body, out any) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	request = request.AbsPath(path)
	if body != nil {
		encoded, err := json.Marshal(body)
		if err != nil {
			return fmt.Errorf("cannot encode the body for %q: %w", path, err)
		}
		request = request.Body(encoded)
	}
	result := request.Do(ctx)
	if err := result.Error(); err != nil {
		return fmt.Errorf("%q: %w", path, err)
	}
	if out == nil {
		return nil
	}
	raw, err := result.Raw()
	if err == nil {
		err = json.Unmarshal(raw, out)
	}
	if err != nil {
		return fmt.Errorf("cannot read the answer of %q: %w", path, err)
	}
	return nil
}

func (a api) create(ctx context.Context, path string, body, out any) error {
	return a.do(ctx, a.client.Post(), path, body, out)
}

func (a api) update(ctx context.Context, path string, body, out any) error {
	return a.do(ctx, a.client.Put(), path, body, out)
}

func (a api) patch(ctx context.Context, path string, body, out any) error {
	return a.do(ctx, a.client.Patch(types.MergePatchType), path, body, out)
}

func (a api) delete(ctx context.Context, path string) error {
	return a.do(ctx, a.client.Delete(), path, nil, nil)
}

// watched is what is read of an object of any kind in a watch.
type watched struct {
	Metadata workload.Meta      `json:"metadata"`
	Status   json.RawMessage    `json:"status"`
	Data     workload.ChildData `json:"data"`
	// Message is that of an error.
	Message string `json:"message"`
}

// watch calls each with every object that there is at the path and has the label,
// and then with every change, until ctx ends. The type is ADDED, MODIFIED or
// DELETED. The API server ends a watch whose reader is slow, and refuses one for a
// while after it was started: it is begun again where it ended.
func (a api) watch(ctx context.Context, path, labelSelector string, each func(kind string, o watched) error) error {
	version, ended := "", time.Now()
	for {
		stream, err := a.client.Get().AbsPath(path).
			Param("watch", "true").Param("labelSelector", labelSelector).Param("resourceVersion", version).
			Param("timeoutSeconds", strconv.Itoa(int(watchTimeout.Seconds()))).
			Stream(ctx)
		if err == nil {
			before := version
			if version, err = follow(stream, version, each); version != before {
				ended = time.Now()
			}
		}
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil && version != "":
			return fmt.Errorf("cannot watch %q: %w", path, err)
		case time.Since(ended) > startLimit:
			return fmt.Errorf("cannot watch %q: %w", path, cmp.Or(err, errors.New("the API server ends it at once")))
		}
		select {
		case <-time.After(watchRetry):
		case <-ctx.Done():
			return nil
		}
	}
}

// follow reads a watch until it ends, and returns the version to go on from.
func follow(stream io.ReadCloser, version string, each func(kind string, o watched) error) (string, error) {
	defer func() { _ = stream.Close() }()
	for decoder := json.NewDecoder(stream); ; {
		var event struct {
			Type   string  `json:"type"`
			Object watched `json:"object"`
		}
		err := decoder.Decode(&event)
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return version, nil
		}
		if err == nil && event.Type == "ERROR" {
			err = errors.New(event.Object.Message)
		}
		if err == nil {
			version = event.Object.Metadata.ResourceVersion
			err = each(event.Type, event.Object)
		}
		if err != nil {
			return version, err
		}
	}
}

// statusOf decodes a parent's status; one that is not there is zero.
func statusOf(raw json.RawMessage) (workload.Status, error) {
	var status workload.Status
	if len(raw) == 0 || bytes.Equal(raw, []byte("null")) {
		return status, nil
	}
	err := json.Unmarshal(raw, &status)
	return status, err
}
