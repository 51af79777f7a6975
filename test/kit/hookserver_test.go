package kit_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/metacontroller-solo/solo/test/kit"
)

// post asks a hook and returns the code and the body.
func post(t *testing.T, url, body string) (code int, answer []byte, err error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	return postWithin(ctx, t, url, body)
}

func postWithin(ctx context.Context, t *testing.T, url, body string) (code int, answer []byte, err error) {
	t.Helper()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Do(req)
	if err != nil {
		return 0, nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	answer, err = io.ReadAll(resp.Body)
	return resp.StatusCode, answer, err
}

func TestHooks(t *testing.T) {
	s := kit.NewHookServer(t)
	s.Handle("/double", kit.JSON(func(in struct{ N int }) (map[string]int, error) {
		if in.N < 0 {
			return nil, errors.New("negative")
		}
		return map[string]int{"n": 2 * in.N}, nil
	}))
	for _, tc := range []struct {
		name, path, body string
		code             int
		want             string
	}{
		{"answers", "/double", `{"n":21}`, 200, `{"n":42}`},
		{"error", "/double", `{"n":-1}`, 500, "negative\n"},
		{"no JSON", "/double", `{`, 400, ""},
		{"no hook", "/other", `{}`, 404, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			code, answer, err := post(t, s.URL(tc.path), tc.body)
			if err != nil || code != tc.code || (tc.want != "" && string(answer) != tc.want) {
				t.Errorf("got %d %q %v", code, answer, err)
			}
		})
	}
	requests := s.WaitRequests(patience, "/double", 3)
	if len(requests) != 3 || string(requests[0].Body) != `{"n":21}` || requests[0].Method != http.MethodPost {
		t.Errorf("recorded %v", requests)
	}
	s.Forget()
	if len(s.Requests("/double")) != 0 {
		t.Error("it does not forget")
	}
}

func TestHookFaults(t *testing.T) {
	s := kit.NewHookServer(t)
	ask := func(hook kit.Hook) (int, []byte, error) {
		s.Handle("/", hook)
		return post(t, s.URL("/"), "{}")
	}
	if code, body, err := ask(kit.Status(503, "later", "Retry-After: 7")); code != 503 || string(body) != "later" || err != nil {
		t.Errorf("status: %d %q %v", code, body, err)
	}
	if code, body, err := ask(kit.HTML()); code != 200 || !bytes.HasPrefix(body, []byte("<!DOCTYPE html>")) || err != nil {
		t.Errorf("HTML: %d %q %v", code, body, err)
	}
	if code, body, err := ask(kit.Malformed()); code != 200 || json.Valid(body) || err != nil {
		t.Errorf("malformed: %d %q %v", code, body, err)
	}
	if code, body, err := ask(kit.Truncated()); code != 200 || len(body) == 0 || !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("truncated: %d %q %v", code, body, err)
	}
	if code, body, err := ask(kit.Huge(3 << 20)); code != 200 || len(body) < 3<<20 || !json.Valid(body) || err != nil {
		t.Errorf("huge: %d, %d bytes, %v", code, len(body), err)
	}
	if _, _, err := ask(kit.Closed()); !errors.Is(err, io.EOF) {
		t.Errorf("closed: %v", err)
	}
	begin := time.Now()
	if code, _, err := ask(kit.Slow(100*time.Millisecond, kit.Status(200, ""))); code != 200 || err != nil || time.Since(begin) < 100*time.Millisecond {
		t.Errorf("slow: %d %v after %s", code, err, time.Since(begin))
	}
	release := make(chan struct{})
	close(release)
	if code, _, err := ask(kit.Held(release, kit.Status(204, ""))); code != 204 || err != nil {
		t.Errorf("held: %d %v", code, err)
	}
	s.Handle("/", kit.Stalled())
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, _, err := postWithin(ctx, t, s.URL("/"), "{}"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("stalled: %v", err)
	}
	s.Handle("/", kit.Sequence(kit.Status(500, ""), kit.Status(200, "")))
	for i, want := range []int{500, 200, 200} {
		if code, _, err := post(t, s.URL("/"), "{}"); code != want || err != nil {
			t.Errorf("sequence, request %d: %d %v", i, code, err)
		}
	}
	s.Down()
	if _, _, err := post(t, s.URL("/"), "{}"); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("down: %v", err)
	}
	s.Up()
	if code, _, err := post(t, s.URL("/"), "{}"); code != 200 || err != nil {
		t.Errorf("up again: %d %v", code, err)
	}
}
