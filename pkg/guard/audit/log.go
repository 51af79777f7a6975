package audit

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/utils/lru"
)

const (
	// queueSize is how many lines wait for a slow sink before lines are dropped.
	queueSize = 4096
	// remembered is how many admission uids are kept to recognise a request
	// that is sent again.
	remembered = 4096
)

// Log writes records to a sink in the background.
type Log struct {
	replica  string
	counters *counters
	sink     io.Writer

	// seenMutex makes looking into seen and adding to it one step.
	seenMutex sync.Mutex
	// seen holds the admission requests that have a line, by uid and decision.
	seen *lru.Cache

	// mutex guards closed and, with it, the sending side of queue: it is never
	// held while the sink is written to.
	mutex  sync.RWMutex
	closed bool
	queue  chan []byte
	done   chan struct{}
}

// seenKey is one logical decision. A request that is sent again and judged
// otherwise is another one.
type seenKey struct {
	uid      string
	decision string
}

// New starts a log. replica names this guard in each record. Close ends it.
func New(sink io.Writer, replica string, registry prometheus.Registerer) (*Log, error) {
	counters, err := newCounters(registry)
	if err != nil {
		return nil, fmt.Errorf("cannot register audit metrics: %w", err)
	}
	log := &Log{
		replica:  replica,
		counters: counters,
		sink:     sink,
		seen:     lru.New(remembered),
		queue:    make(chan []byte, queueSize),
		done:     make(chan struct{}),
	}
	go log.write()
	return log, nil
}

// Record counts an entry and queues its line. It never waits.
func (l *Log) Record(e Entry) {
	record := RecordOf(e, l.replica)
	if l.again(record) {
		return
	}
	l.counters.count(e, record)

	line, err := lineOf(record)
	if err != nil {
		l.counters.dropped.Inc()
		return
	}
	l.mutex.RLock()
	defer l.mutex.RUnlock()
	if l.closed {
		l.counters.dropped.Inc()
		return
	}
	select {
	case l.queue <- line:
	default:
		l.counters.dropped.Inc()
	}
}

// again says whether the decision has its line already, and remembers it.
func (l *Log) again(record Record) bool {
	l.seenMutex.Lock()
	defer l.seenMutex.Unlock()
	key := seenKey{uid: string(record.AdmissionUID), decision: record.Decision}
	if _, found := l.seen.Get(key); found {
		return true
	}
	l.seen.Add(key, struct{}{})
	return false
}

// write is the only one that touches the sink.
func (l *Log) write() {
	defer close(l.done)
	for line := range l.queue {
		if _, err := l.sink.Write(line); err != nil {
			l.counters.dropped.Inc()
		}
	}
}

// Close writes what is queued and waits for it until ctx ends.
func (l *Log) Close(ctx context.Context) error {
	l.mutex.Lock()
	if !l.closed {
		l.closed = true
		close(l.queue)
	}
	l.mutex.Unlock()
	select {
	case <-l.done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("cannot write the last audit lines: %w", context.Cause(ctx))
	}
}

// StandardOutput is the name of the sink that writes to standard output.
const StandardOutput = "-"

// Open opens a sink: StandardOutput, or a file to append to. The returned
// close function does not close standard output.
func Open(name string, stdout io.Writer) (io.Writer, func() error, error) {
	switch name {
	case "":
		return nil, nil, errors.New("cannot open audit log: no name given; use - for standard output, or a path")
	case StandardOutput:
		return stdout, func() error { return nil }, nil
	}
	file, err := os.OpenFile(name, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o640) //nolint:gosec // The path is the operator's.
	if err != nil {
		return nil, nil, fmt.Errorf("cannot open audit log %q: %w", name, err)
	}
	return file, file.Close, nil
}
