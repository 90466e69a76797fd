package flashsale

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/locksidecar/locksidecar/protocol"
	locksidecar "github.com/locksidecar/locksidecar/sdk/go"
)

// A till is a process that sells. It reads its setup and then orders from
// stdin and writes reports to stdout, one JSON object a line.

type tillSetup struct {
	Redis  string        `json:"redis"`   // URL of the Redis with the stock
	Socket string        `json:"socket"`  // of the sidecar
	Lock   string        `json:"lock"`    // name of the lock
	Stock  string        `json:"stock"`   // key of the stock
	Work   time.Duration `json:"work_ns"` // how long a customer takes to pay
}

const (
	orderSell       = "sell"        // read, work, write until nothing is left
	orderSellLocked = "sell-locked" // the same inside the lock
	orderHold       = "hold"        // at the next grant, keep the lock and wait to be killed
)

type tillOrder struct {
	Order string `json:"order"`
}

// tillReport kinds: ready, sale, holding, done, error.
type tillReport struct {
	Kind      string `json:"kind"`
	Unit      int    `json:"unit,omitempty"`
	Token     uint64 `json:"token,omitempty"`
	WaitNS    int64  `json:"wait_ns,omitempty"`    // for the lock
	GrantedNS int64  `json:"granted_ns,omitempty"` // CLOCK_BOOTTIME
	SoldNS    int64  `json:"sold_ns,omitempty"`    // CLOCK_BOOTTIME
	Err       string `json:"err,omitempty"`

	till *till // set where it is read
}

// A goTill is what a till in Go knows.
type goTill struct {
	setup   tillSetup
	store   *redis.Client
	locks   *locksidecar.Client
	holdsOn atomic.Bool // with the next grant, until it is killed
	report  func(tillReport)
}

// RunTill is the whole life of a till in Go.
func RunTill(ctx context.Context, stdin io.Reader, stdout io.Writer) error {
	in := json.NewDecoder(bufio.NewReader(stdin))
	out := json.NewEncoder(stdout)
	t := &goTill{}
	if err := in.Decode(&t.setup); err != nil {
		return fmt.Errorf("reading the till's setup: %w", err)
	}
	store, err := stockClient(t.setup.Redis)
	if err != nil {
		return err
	}
	defer store.Close()
	t.store = store
	locks, err := locksidecar.Dial(ctx, t.setup.Socket)
	if err != nil {
		return err
	}
	defer locks.Close()
	t.locks = locks
	// One phase at a time sells, so that reports have one writer.
	t.report = func(r tillReport) { out.Encode(r) }
	t.report(tillReport{Kind: "ready"})

	idle := make(chan struct{}, 1) // holds a token while no phase runs
	idle <- struct{}{}
	for {
		var o tillOrder
		if err := in.Decode(&o); err != nil {
			return nil // the sale is over
		}
		if o.Order == orderHold {
			t.holdsOn.Store(true)
			continue
		}
		<-idle
		go func() {
			defer func() { idle <- struct{}{} }()
			sell := t.sell
			if o.Order == orderSellLocked {
				sell = t.sellLocked
			}
			for {
				switch r, err := sell(ctx); {
				case err != nil:
					t.report(tillReport{Kind: "error", Err: err.Error()})
					return
				case r.Unit == 0:
					t.report(tillReport{Kind: "done"})
					return
				default:
					t.report(r)
				}
			}
		}()
	}
}

// sell sells one unit by plain read, work, write; unit 0: all are sold.
func (t *goTill) sell(ctx context.Context) (tillReport, error) {
	unit, err := t.store.Get(ctx, t.setup.Stock).Int()
	if err != nil {
		return tillReport{}, fmt.Errorf("reading the stock: %w", err)
	}
	if unit <= 0 {
		return tillReport{}, nil
	}
	time.Sleep(t.setup.Work) // the customer pays
	if err := t.store.Set(ctx, t.setup.Stock, unit-1, 0).Err(); err != nil {
		return tillReport{}, fmt.Errorf("writing the stock: %w", err)
	}
	return tillReport{Kind: "sale", Unit: unit}, nil
}

// sellLocked is sell with nobody else selling meanwhile.
func (t *goTill) sellLocked(ctx context.Context) (tillReport, error) {
	asked := protocol.Now()
	lock, err := t.locks.Lock(ctx, t.setup.Lock)
	if err != nil {
		return tillReport{}, err
	}
	granted := protocol.Now()
	if t.holdsOn.Load() {
		t.report(tillReport{Kind: "holding", Token: lock.Token()})
		select {} // until the kill
	}
	r, err := t.sell(ctx)
	r.Token, r.WaitNS, r.GrantedNS, r.SoldNS = lock.Token(), granted-asked, granted, protocol.Now()
	if unlockErr := lock.Unlock(); err == nil {
		err = unlockErr
	}
	return r, err
}

// stockClient is a single connection to the Redis with the stock.
func stockClient(url string) (*redis.Client, error) {
	opts, err := redis.ParseURL(url)
	if err != nil {
		return nil, err
	}
	opts.PoolSize, opts.DisableIdentity = 1, true
	return redis.NewClient(opts), nil
}
