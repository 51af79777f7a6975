package controller_test

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"
)

// rawServer speaks HTTP/1.1 by hand, so that it can do all that a server must not.
type rawServer struct {
	address string
	// answer gets the connection, and the path and the body of a request. It says
	// whether the connection is good for another one.
	answer func(conn net.Conn, path string, body []byte) bool

	mu    sync.Mutex // guards conns
	conns map[net.Conn]bool
}

func newRawServer(t *testing.T, answer func(conn net.Conn, path string, body []byte) bool) *rawServer {
	t.Helper()
	s := &rawServer{answer: answer, conns: map[net.Conn]bool{}}
	s.address = listen(t, s.serve, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		for conn := range s.conns {
			_ = conn.Close()
		}
	})
	return s
}

func (s *rawServer) url(path string) string { return "http://" + s.address + path }

func (s *rawServer) serve(conn net.Conn) {
	s.mu.Lock()
	s.conns[conn] = true
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		delete(s.conns, conn)
		s.mu.Unlock()
	}()
	in := bufio.NewReader(conn)
	for {
		request, err := http.ReadRequest(in)
		if err != nil {
			return
		}
		body, err := io.ReadAll(request.Body)
		if err != nil || !s.answer(conn, request.URL.Path, body) {
			return
		}
	}
}

// listen serves connections on loopback, each in a goroutine, until the test ends.
// Stop is to end those that are open.
func listen(t *testing.T, serve func(net.Conn), stop func()) (address string) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			serving.Go(func() {
				defer conn.Close()
				serve(conn)
			})
		}
	})
	t.Cleanup(func() {
		_ = listener.Close()
		stop()
		serving.Wait()
	})
	return listener.Addr().String()
}

// silent is a server that accepts connections and never reads.
func silent(t *testing.T) (address string) {
	t.Helper()
	over := make(chan struct{})
	return listen(t, func(net.Conn) { <-over }, func() { close(over) })
}

// whole is an answer as it should be.
func whole(body []byte, headers ...string) []byte {
	out := fmt.Appendf(nil, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n", len(body))
	for _, header := range headers {
		out = append(out, header+"\r\n"...)
	}
	return append(append(out, "\r\n"...), body...)
}

// fault is what a hook may do to a connection instead of an answer that is as it
// should be, of which good is the body. It says whether the connection can be used
// again.
type fault func(conn net.Conn, good []byte) bool

// text is a fault that is whatever is written.
func text(parts ...string) fault {
	return func(conn net.Conn, _ []byte) bool {
		_, _ = io.WriteString(conn, strings.Join(parts, ""))
		return false
	}
}

// body is a fault that is in the body of a whole answer.
func body(parts ...string) fault {
	return func(conn net.Conn, _ []byte) bool {
		_, err := conn.Write(whole([]byte(strings.Join(parts, ""))))
		return err == nil
	}
}

// redirect is a fault that leads elsewhere.
func redirect(code int, location string) fault {
	return text(fmt.Sprintf("HTTP/1.1 %d Elsewhere\r\nLocation: %s\r\nContent-Length: 0\r\n\r\n", code, location))
}

// repeated writes a text and then another one for ever, with a pause before each,
// until the other side has had enough.
func repeated(first, then string, pause time.Duration) fault {
	return func(conn net.Conn, _ []byte) bool {
		if _, err := io.WriteString(conn, first); err != nil {
			return false
		}
		timer := time.NewTimer(pause)
		defer timer.Stop()
		for {
			<-timer.C
			if _, err := io.WriteString(conn, then); err != nil {
				return false
			}
			timer.Reset(pause)
		}
	}
}

// held writes a text and is silent from then on.
func held(text string) fault {
	return func(conn net.Conn, _ []byte) bool {
		_, _ = io.WriteString(conn, text)
		_, _ = io.Copy(io.Discard, conn)
		return false
	}
}

// altered is the good answer with changes in its text.
func altered(replace ...string) fault {
	return func(conn net.Conn, good []byte) bool {
		_, err := conn.Write(whole([]byte(strings.NewReplacer(replace...).Replace(string(good)))))
		return err == nil
	}
}

// before is the good answer with fields before its own, each with a comma after it.
func before(fields string) fault {
	return func(conn net.Conn, good []byte) bool {
		_, err := conn.Write(whole([]byte("{" + fields + string(good[1:]))))
		return err == nil
	}
}

// trickled is the good answer, byte by byte.
func trickled(conn net.Conn, good []byte) bool {
	ticker := time.NewTicker(50 * time.Millisecond)
	defer ticker.Stop()
	for _, one := range whole(good) {
		if _, err := conn.Write([]byte{one}); err != nil {
			return false
		}
		<-ticker.C
	}
	return true
}

// streamed writes blocks, size bytes in all, after a header.
func streamed(header string, block []byte, size int64) fault {
	return func(conn net.Conn, _ []byte) bool {
		_, err := io.WriteString(conn, header)
		for sent := int64(0); err == nil && sent < size; sent += int64(len(block)) {
			_, err = conn.Write(block)
		}
		return false
	}
}

// bomb is a gigabyte of white space in a megabyte of gzip: members of a gzip file
// may follow one another.
func bomb() fault {
	var member bytes.Buffer
	w := gzip.NewWriter(&member)
	_, _ = w.Write(bytes.Repeat([]byte(" "), 16<<20))
	_ = w.Close()
	return streamed("HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\n\r\n", member.Bytes(), int64(64*member.Len()))
}

// reset breaks the connection off, without a word, after a beginning.
func reset(beginning string) fault {
	return func(conn net.Conn, _ []byte) bool {
		_, _ = io.WriteString(conn, beginning)
		_ = conn.(*net.TCPConn).SetLinger(0)
		return false
	}
}

// many is a JSON list of n elements; %d in the text of one is its number.
func many(n int, element string) string {
	var b strings.Builder
	b.WriteByte('[')
	for i := range n {
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, element, i)
	}
	b.WriteByte(']')
	return b.String()
}

// fields are n fields of a JSON object, with a comma after each.
func fields(n int, format string) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, format+",", i)
	}
	return b.String()
}

// askedAbout is the parent of a request, and the good answer to it.
func askedAbout(t *testing.T, body []byte) (r request, good []byte) {
	if err := json.Unmarshal(body, &r); err != nil {
		t.Error(err)
	}
	good, err := json.Marshal(object{"status": object{"seen": len(r.Children["ConfigMap.v1"])}, "children": desired(r)})
	if err != nil {
		t.Error(err)
	}
	return r, good
}
