package cluster

import (
	"context"
	"fmt"
	"strconv"

	"github.com/metacontroller-solo/solo/pkg/object"
)

// listPage is how many objects are read at once.
const listPage = 500

// ListMetadata reads the metadata of all objects of a kind from the API server,
// past every cache and page by page, and calls each for them. Their own kind is
// PartialObjectMetadata.
func (w *Writer) ListMetadata(ctx context.Context, kind object.Kind, each func(*object.Object)) error {
	for next := ""; ; {
		page, err := w.page(ctx, kind, next)
		if err != nil {
			return err
		}
		for _, one := range page.Items {
			each(one)
		}
		if next = page.Continue; next == "" {
			return nil
		}
	}
}

func (w *Writer) page(ctx context.Context, kind object.Kind, next string) (*object.List, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	request := w.client.Get().AbsPath(Path(kind, "", "")).
		SetHeader("Accept", "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1").
		Param("limit", strconv.Itoa(listPage))
	if next != "" {
		request = request.Param("continue", next)
	}
	body, err := Answer(request.Do(ctx))
	if err != nil {
		return nil, err
	}
	page, err := object.Reader{}.ListFromJSON(body)
	if err != nil {
		return nil, fmt.Errorf("cannot read the list of %q: %w", kind.Resource, err)
	}
	return page, nil
}
