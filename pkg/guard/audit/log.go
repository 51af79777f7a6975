package audit

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/utils/lru"
)

const (
	// queueLines and queueBytes are how many lines, and how much memory of theirs,
	// wait for a slow sink before lines are dropped.
	queueLines = 4096
	queueBytes = 16 << 20
	// remembered is how many admission uids are kept to recognise a request
	// that is sent again.
	remembered = 4096
	// reportInterval is how often lost lines are reported at most.
	reportInterval = time.Minute
)

// DefaultRepeatInterval is for how long repeats of a decision are counted before
// they get a line.
const DefaultRepeatInterval = 10 * time.Minute

// Options are what a Log needs. Replica and Registry are required.
type Options struct {
	// Replica names this guard in each record.
	Replica  string
	Registry prometheus.Registerer
	// RepeatInterval is for how long repeats of a decision are counted before they
	// get a line; zero gives each decision its own.
	RepeatInterval time.Duration
	// Owners looks up an owner and those above it, as far as they exist; it is
	// called from the background and may take a moment. Nil looks up none.
	Owners func(namespace string, owner Owner) []Owner
	// Notify is told each record that gets a line, in order. It must not wait. Nil
	// tells nobody.
	Notify func(Record)
	// Report is told, from the background and at most once in a minute, that lines
	// are lost. Nil tells nobody.
	Report func(error)
}

// Log writes records to a sink in the background.
type Log struct {
	options  Options
	counters *counters
	sink     io.WriteCloser

	// mutex guards the fields below it up to queue, and the sending side of queue.
	// It is held for some look-ups in maps, and never while anything is encoded,
	// written or waited for.
	mutex  sync.Mutex
	closed bool
	// seen has the ids of the decisions that are in the log, by uid and decision.
	seen   *lru.Cache
	series *series
	queue  chan Record

	// queued is how many bytes wait in queue.
	queued atomic.Int64
	// lost is how many lines were dropped, and why the last of them.
	lost      atomic.Int64
	lostError atomic.Pointer[error]
	// stop ends the goroutine that looks at the time; done says that the last line
	// is written.
	stop, done chan struct{}
	watching   sync.WaitGroup
	// reported is how many lost lines were reported: by watch, and when it has
	// ended by Close.
	reported int64
	// closeError is what closing the sink came to, once done.
	closeError error
}

// seenKey is one logical decision. A request that is sent again and judged
// otherwise is another one.
type seenKey struct {
	uid      string
	decision string
}

var (
	errQueueFull = errors.New("the sink is too slow")
	errClosed    = errors.New("the log is closed")
)

// New starts a log. Close ends it, and closes the sink.
func New(sink io.WriteCloser, options Options) (*Log, error) {
	counters, err := newCounters(options.Registry)
	if err != nil {
		return nil, fmt.Errorf("cannot register audit metrics: %w", err)
	}
	log := &Log{
		options:  options,
		counters: counters,
		sink:     sink,
		seen:     lru.New(remembered),
		series:   newSeries(options.RepeatInterval),
		queue:    make(chan Record, queueLines),
		stop:     make(chan struct{}),
		done:     make(chan struct{}),
	}
	go log.write()
	log.watching.Go(log.watch)
	return log, nil
}

// Record counts an entry and queues its line, if it gets one. It never waits. It
// returns the id under which the decision is in the log: the entry's own, or that
// of the decision that it repeats.
func (l *Log) Record(e Entry) string {
	record := RecordOf(e, l.options.Replica)
	id, again := l.take(record)
	if !again {
		l.counters.count(e, record)
	}
	return id
}

// take finds out what a decision is to the log. again says that it was there
// before.
func (l *Log) take(record Record) (id string, again bool) {
	key := seenKey{uid: string(record.AdmissionUID), decision: record.Decision}
	l.mutex.Lock()
	defer l.mutex.Unlock()
	if id, found := l.seen.Get(key); found {
		return id.(string), true
	}
	if l.closed {
		l.drop(record, errClosed)
		return record.DecisionID, false
	}
	id, due := l.series.add(record)
	l.seen.Add(key, id)
	l.send(due)
	return id, false
}

// send queues lines. The mutex is held, and the log is open.
func (l *Log) send(due []Record) {
	for _, record := range due {
		size := int64(record.size())
		if l.queued.Add(size) > queueBytes {
			l.queued.Add(-size)
			l.drop(record, errQueueFull)
			continue
		}
		select {
		case l.queue <- record:
			if l.options.Notify != nil {
				l.options.Notify(record)
			}
		default:
			l.queued.Add(-size)
			l.drop(record, errQueueFull)
		}
	}
}

func (l *Log) drop(record Record, why error) {
	l.counters.dropped.Inc()
	l.counters.droppedDecisions.Add(float64(record.Count))
	l.lostError.Store(&why)
	l.lost.Add(1)
}

// write is the only one that touches the sink.
func (l *Log) write() {
	defer close(l.done)
	for record := range l.queue {
		l.queued.Add(-int64(record.size()))
		if len(record.Owners) > 0 && l.options.Owners != nil {
			if chain := l.options.Owners(record.Object.Namespace, record.Owners[0]); len(chain) > 1 {
				record.Owners = chain
			}
		}
		line, err := lineOf(record)
		if err == nil {
			_, err = l.sink.Write(line)
		}
		if err != nil {
			l.drop(record, err)
		}
	}
	l.closeError = l.sink.Close()
}

// watch writes the lines of intervals that are over, and reports lost lines.
func (l *Log) watch() {
	period := reportInterval
	if l.options.RepeatInterval > 0 {
		period = min(period, max(l.options.RepeatInterval/10, 10*time.Millisecond))
	}
	ticker := time.NewTicker(period)
	defer ticker.Stop()
	last := time.Time{}
	for {
		select {
		case <-l.stop:
			return
		case now := <-ticker.C:
			l.mutex.Lock()
			if !l.closed {
				l.send(l.series.expire(now))
			}
			l.mutex.Unlock()
			if now.Sub(last) >= reportInterval && l.report() {
				last = now
			}
		}
	}
}

// report says how many lines were lost since it last did, if any were.
func (l *Log) report() bool {
	lost := l.lost.Load() - l.reported
	if lost == 0 {
		return false
	}
	l.reported += lost
	if l.options.Report != nil {
		l.options.Report(fmt.Errorf("%d audit lines are lost: %w", lost, *l.lostError.Load()))
	}
	return true
}

// Close writes what is counted and queued, and waits for it until ctx ends. It is
// called by one goroutine at a time.
func (l *Log) Close(ctx context.Context) error {
	l.mutex.Lock()
	if !l.closed {
		l.send(l.series.flush())
		l.closed = true
		close(l.queue)
		close(l.stop)
	}
	l.mutex.Unlock()
	l.watching.Wait()
	defer l.report()
	select {
	case <-l.done:
		if l.closeError != nil {
			return fmt.Errorf("cannot close audit log: %w", l.closeError)
		}
		return nil
	case <-ctx.Done():
		return fmt.Errorf("cannot write the last audit lines: %w", context.Cause(ctx))
	}
}
