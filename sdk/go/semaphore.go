package locksidecar

import (
	"context"
	"fmt"

	"github.com/locksidecar/locksidecar/protocol"
)

// Semaphore has permits, of which the clients of all hosts together hold at most as many as its
// capacity. [Client.Semaphore] returns it. Many goroutines may use it at once.
type Semaphore struct {
	client   *Client
	name     string
	capacity int
}

// Semaphore returns the semaphore of that name, with 1 to 65,535 permits. It sends nothing. The
// name is as that of a lock; a name is that of a lock or of a semaphore, and not of both at one
// time.
//
// The capacity is that of each request: an Acquire is granted when the permits that are held and
// its own are at most its capacity. So a program with another capacity takes no permit away. The
// policy of the sidecar may set a lower one; see [Permit.Of].
func (c *Client) Semaphore(name string, capacity int) *Semaphore {
	return &Semaphore{c, name, capacity}
}

// Name returns the name of the semaphore.
func (s *Semaphore) Name() string { return s.name }

// Capacity returns how many permits there are.
func (s *Semaphore) Capacity() int { return s.capacity }

// Acquire acquires n permits at one time, and waits for them as long as ctx allows. Requests are
// granted in their order: one that does not fit yet keeps those after it waiting. Each Acquire is a
// hold of its own, also with a context of [NewOwner]: a program that waits for more permits while it
// holds some may wait for itself.
//
// The permits are held until [Permit.Release], or until they are lost. Those of a program that ends
// are free at once, those of a host that ends when its lease ends. ctx, and the errors, are as of
// [Client.Lock].
func (s *Semaphore) Acquire(ctx context.Context, n int, options ...Option) (*Permit, error) {
	return s.acquire(ctx, n, false, options)
}

// TryAcquire acquires n permits if they are free and no other call waits for some; otherwise the
// error is ErrHeld. ctx, and the other errors, are as of [Client.TryLock].
func (s *Semaphore) TryAcquire(ctx context.Context, n int, options ...Option) (*Permit, error) {
	return s.acquire(ctx, n, true, options)
}

// Do acquires n permits as Acquire does, calls f while they are held, and releases them. The context
// of f ends when ctx ends or the permits are lost. Errors and panics are as of [Client.Do].
func (s *Semaphore) Do(ctx context.Context, n int, f func(ctx context.Context) error, options ...Option) error {
	p, err := s.Acquire(ctx, n, options...)
	if err != nil {
		return err
	}
	return p.whileHeld(ctx, f)
}

func (s *Semaphore) acquire(ctx context.Context, n int, try bool, options []Option) (*Permit, error) {
	t := task{"acquire permits of", s.name}
	switch {
	case s.capacity < 1 || s.capacity > protocol.MaxPermits:
		return nil, &clientError{text: fmt.Sprintf("%s: its capacity is %d; it must be from 1 to %d", t, s.capacity, protocol.MaxPermits)}
	case n < 1 || n > s.capacity:
		return nil, &clientError{text: fmt.Sprintf("%s: %d are requested; request from 1 to its capacity, %d", t, n, s.capacity)}
	}
	req := wanted{AcquirePermits: protocol.AcquirePermits{Acquire: protocol.Acquire{Name: s.name}, Permits: uint16(n), Of: uint16(s.capacity)}}
	l, err := s.client.acquire(ctx, t, req, try, options)
	return (*Permit)(l), err
}

// Permit is a handle for permits that one Acquire has acquired, and for exactly one Release.
// [Semaphore.Acquire] and [Semaphore.TryAcquire] return it; the zero Permit cannot be used. Many
// goroutines may call its methods at once. A Permit must not be copied.
type Permit struct{ handle } // has the same fields as Lock: the first handle of a hold is either of them

// Permits returns how many permits are held.
func (p *Permit) Permits() int { return int(p.hold.permits) }

// Of returns how many permits the semaphore has for this hold: its capacity, or fewer if the policy
// of the sidecar sets a lower one.
func (p *Permit) Of() int { return int(p.hold.of) }

// Release releases the permits, as [Lock.Unlock] releases a lock. Its options and errors are the
// same.
func (p *Permit) Release(options ...UnlockOption) error { return p.release(readFirst, options...) }
