package link

import (
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// echo is a server that gives back what it gets.
func echo(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				_, _ = io.Copy(conn, conn)
				_ = conn.Close()
			}()
		}
	}()
	return listener.Addr().String()
}

func start(t *testing.T) *Link {
	t.Helper()
	l, err := Listen("127.0.0.1:0", echo(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.Close)
	return l
}

func dial(t *testing.T, l *Link) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", l.Addr())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// say sends a word and expects it back.
func say(conn net.Conn) error {
	_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
	if _, err := io.WriteString(conn, "word"); err != nil {
		return err
	}
	_, err := io.ReadFull(conn, make([]byte, 4))
	return err
}

func TestPass(t *testing.T) {
	l := start(t)
	conn := dial(t, l)
	if err := say(conn); err != nil {
		t.Fatal(err)
	}
	// The end of one direction reaches the server, whose rest still comes back.
	if _, err := io.WriteString(conn, "rest"); err != nil {
		t.Fatal(err)
	}
	if err := conn.(*net.TCPConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if rest, err := io.ReadAll(conn); err != nil || string(rest) != "rest" {
		t.Errorf("%q, %v", rest, err)
	}
}

func TestRefuse(t *testing.T) {
	l := start(t)
	old := dial(t, l)
	if err := say(old); err != nil {
		t.Fatal(err)
	}
	l.Cut(Refuse)
	if !l.IsCut() {
		t.Error("the link is not cut")
	}
	if err := say(old); err == nil {
		t.Error("a connection lives on")
	}
	if conn, err := net.Dial("tcp", l.Addr()); err == nil {
		if err := say(conn); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("a new connection gets %v", err)
		}
		_ = conn.Close()
	}
	l.Heal()
	if err := say(dial(t, l)); err != nil {
		t.Errorf("after Heal: %v", err)
	}
}

func TestBlackHole(t *testing.T) {
	l := start(t)
	old := dial(t, l)
	if err := say(old); err != nil {
		t.Fatal(err)
	}
	l.Cut(BlackHole)
	if err := say(old); err == nil {
		t.Error("a connection lives on")
	}
	held := dial(t, l)
	if _, err := io.WriteString(held, "word"); err != nil {
		t.Fatal(err)
	}
	_ = held.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
	if _, err := held.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("a held connection gets %v", err)
	}
	l.Heal()
	_ = held.SetReadDeadline(time.Now().Add(10 * time.Second))
	if _, err := held.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("after Heal a held connection gets %v", err)
	}
	if err := say(dial(t, l)); err != nil {
		t.Errorf("after Heal: %v", err)
	}
}

// However cuts and connections interleave, no connection works while the link is cut, and the link ends clean.
func TestCutWhileDialling(t *testing.T) {
	l := start(t)
	stop := make(chan struct{})
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-stop:
				return
			default:
			}
			if conn, err := net.Dial("tcp", l.Addr()); err == nil {
				_ = conn.SetDeadline(time.Now().Add(time.Second))
				_, _ = io.WriteString(conn, "word")
				_, _ = conn.Read(make([]byte, 4))
				_ = conn.Close()
			}
		}
	}()
	for range 50 {
		l.Cut(Refuse)
		if conn, err := net.Dial("tcp", l.Addr()); err == nil {
			if err := say(conn); err == nil {
				t.Error("a connection works across the cut")
			}
			_ = conn.Close()
		}
		l.Heal()
	}
	close(stop)
	<-done
}

func TestTargetDown(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_ = listener.Close()
	l, err := Listen("127.0.0.1:0", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if conn, err := net.Dial("tcp", l.Addr()); err == nil {
		if err := say(conn); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("a connection to nothing gets %v", err)
		}
		_ = conn.Close()
	}
}
