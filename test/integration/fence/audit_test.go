package fence_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	"github.com/metacontroller-solo/solo/test/kit"
)

const stamp = "15:04:05.000000"

// event is a write in an audit log.
type event struct {
	Verb string `json:"verb"`
	User struct {
		Username string              `json:"username"`
		Extra    map[string][]string `json:"extra"`
	} `json:"user"`
	Impersonated *struct {
		Username string `json:"username"`
	} `json:"impersonatedUser"`
	ObjectRef struct {
		Resource, Namespace, Name string
	} `json:"objectRef"`
	ResponseStatus struct {
		Code int `json:"code"`
	} `json:"responseStatus"`
	Annotations map[string]string `json:"annotations"`
	Completed   time.Time         `json:"stageTimestamp"`
}

func (e event) uid() string {
	if ids := e.User.Extra["authentication.kubernetes.io/pod-uid"]; len(ids) > 0 {
		return ids[0]
	}
	return ""
}

func (e event) accepted() bool { return e.ResponseStatus.Code/100 == 2 }

// position is a place in each API server's audit log.
type position []int64

// now is the end of the logs.
func now(cp *kit.ControlPlane) (position, error) {
	at := make(position, cp.APIServers())
	for server := range at {
		info, err := os.Stat(cp.AuditLog(server))
		if err != nil {
			return nil, err
		}
		at[server] = info.Size()
	}
	return at, nil
}

// events are those of all API servers since a position, in the order of their end.
func events(cp *kit.ControlPlane, since position) ([]event, error) {
	var all []event
	for server, from := range since {
		content, err := readFrom(cp.AuditLog(server), from)
		if err != nil {
			return nil, err
		}
		for line := range bytes.Lines(content) {
			if !bytes.HasSuffix(line, []byte("\n")) {
				break // the rest of the line is still to come
			}
			var one event
			if err := json.Unmarshal(line, &one); err != nil {
				return nil, fmt.Errorf("audit line %q: %w", line, err)
			}
			all = append(all, one)
		}
	}
	slices.SortStableFunc(all, func(a, b event) int { return a.Completed.Compare(b.Completed) })
	return all, nil
}

func readFrom(path string, offset int64) (content []byte, err error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	if _, err := file.Seek(offset, io.SeekStart); err != nil {
		return nil, err
	}
	return io.ReadAll(file)
}

// handover is what an audit log says of the writes of two Pods, of which the
// second came in the first one's place.
type handover struct {
	// overlap is for how long writes of the old one were accepted after the first
	// write of the new one; late is how many.
	overlap time.Duration
	late    int
	// gap is without any writer.
	gap time.Duration
	// oldAfter is for how long the old one's writes were accepted after a moment.
	oldAfter time.Duration
	// forbidden are the old one's writes that were refused after that moment,
	// unauthorized those of nobody who could be told.
	forbidden, unauthorized int
	// wrote says whether both have written.
	wrote bool
}

// handoverOf judges the writes to what both write.
func handoverOf(all []event, old, fresh string, moment time.Time) handover {
	var h handover
	var lastOld, firstNew time.Time
	for _, e := range all {
		if e.ObjectRef.Namespace != beats || !e.accepted() {
			continue
		}
		switch {
		case e.uid() == fresh && firstNew.IsZero():
			firstNew = e.Completed
		case e.uid() == old:
			if !firstNew.IsZero() {
				h.late++
				h.overlap = e.Completed.Sub(firstNew)
			} else {
				lastOld = e.Completed
			}
		}
	}
	h.wrote = !lastOld.IsZero() && !firstNew.IsZero()
	h.gap = firstNew.Sub(lastOld)
	h.oldAfter = max(0, lastOld.Sub(moment))
	for _, e := range all {
		if e.ObjectRef.Namespace != beats || !e.Completed.After(moment) {
			continue
		}
		switch {
		case e.ResponseStatus.Code == 403 && e.uid() == old:
			h.forbidden++
		case e.ResponseStatus.Code == 401:
			h.unauthorized++
		}
	}
	return h
}
