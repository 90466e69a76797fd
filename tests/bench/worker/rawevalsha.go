package main

import (
	"fmt"
	"log/slog"
	"os"

	"github.com/locksidecar/locksidecar/sidecar/redisop"
	"github.com/locksidecar/locksidecar/sidecar/state"
	"github.com/locksidecar/locksidecar/sidecar/store"
)

// rawEvalsha drives the sidecar's own way to Redis, and nothing above it: each
// name is taken, dropped as soon as the take is answered, and taken again as soon
// as the drop is. There is no process boundary, no lock table and no goroutine to
// wake; Redis and the connection to it are what is measured.
type rawEvalsha struct {
	*run
	store *store.Store
	up    chan struct{} // gets one when Redis can be asked
	warm  chan struct{} // closed when all names are
	tapes []*tape

	// The store's callback owns what follows as soon as there are takes under way.
	lanes map[string]*lane
	cold  int // names that are warming up
}

// A lane is what is going on with one name.
type lane struct {
	tape *tape
	rec  *record
	num  uint64 // of the hold
}

func newRawEvalsha(r *run) measurement {
	return &rawEvalsha{run: r, up: make(chan struct{}, 1), warm: make(chan struct{})}
}

func (e *rawEvalsha) prepare() error {
	if e.WorkUS != 0 {
		return fmt.Errorf("work_us %d in the spec: a limit has no critical section", e.WorkUS)
	}
	e.tapes = newTapes(len(e.Names))
	e.lanes = make(map[string]*lane, len(e.Names))
	for i, name := range e.Names {
		e.lanes[name] = &lane{tape: e.tapes[i]}
	}
	if e.cold = len(e.lanes); e.cold != len(e.Names) || e.cold == 0 {
		return fmt.Errorf("the spec has %d names, and %d different ones: it takes at least one, each only once", len(e.Names), e.cold)
	}
	s, err := store.Open(store.Config{
		URL: e.Redis, UUID: state.NewUUID().String(),
		Log: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn})),
		OnEvent: func(event store.Event) {
			switch event.Kind {
			case store.Results:
				e.results(event.Results)
			case store.Up:
				select {
				case e.up <- struct{}{}:
				default:
				}
			}
		},
	})
	if err != nil {
		return err
	}
	e.store = s
	<-e.up
	e.takeAll()
	<-e.warm
	return nil
}

func (e *rawEvalsha) start() { e.takeAll() }

func (e *rawEvalsha) takeAll() {
	ops := make([]redisop.Op, 0, len(e.Names))
	for _, name := range e.Names {
		ops = append(ops, e.take(name, e.lanes[name]))
	}
	e.store.Do(ops)
}

func (e *rawEvalsha) take(name string, l *lane) redisop.Op {
	l.num++
	if l.num <= warmups {
		l.rec = new(record)
	} else {
		l.rec = l.tape.next()
	}
	l.rec[asked].Store(e.now())
	return redisop.Op{Kind: redisop.Take, Name: name, HoldID: l.num, Count: 1, LeaseMS: uint32(e.LeaseMS), Asked: redisop.Asked{Reserve: 1}}
}

// results goes on with each name that was answered.
func (e *rawEvalsha) results(results []redisop.Result) {
	ops := make([]redisop.Op, 0, len(results))
	for i := range results {
		res := &results[i]
		l := e.lanes[res.Name]
		if res.Outcome != redisop.Done {
			e.add(fmt.Errorf("%v of %s: outcome %v: %s", res.Kind, res.Name, res.Outcome, res.Msg))
		}
		if res.Kind == redisop.Take {
			l.rec[granted].Store(e.now())
			l.rec[leaving].Store(e.now())
			ops = append(ops, redisop.Op{Kind: redisop.Drop, Name: res.Name, HoldID: l.num})
			continue
		}
		l.rec[done].Store(e.now())
		switch {
		case l.num == warmups:
			if e.cold--; e.cold == 0 {
				close(e.warm)
			}
		case !e.stopped.Load():
			ops = append(ops, e.take(res.Name, l))
		}
	}
	e.store.Do(ops)
}

func (e *rawEvalsha) finish() error { return writeTapes(e.Records, e.tapes) }
