//go:build linux

package locksidecar_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	locksidecar "github.com/locksidecar/locksidecar/sdk/go"
)

func Example() {
	ctx := context.Background()
	c, err := locksidecar.Dial(ctx, "")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer c.Close()

	charge := func(ctx context.Context, invoice int) error {
		ctx, cancel := context.WithTimeout(ctx, 2*time.Second) // for the wait and the work
		defer cancel()
		return c.Do(ctx, fmt.Sprintf("invoice:%d", invoice), func(ctx context.Context, token uint64) error {
			// ctx ends when the lock is lost. The first write has the token: see "What a lock
			// guarantees".
			fmt.Println("charging", invoice, ctx.Err() == nil, token > 0)
			return nil
		}) // ErrLost is joined to the result
	}
	fmt.Println(charge(ctx, 42))
	// Output:
	// charging 42 true true
	// <nil>
}

func ExampleClient_TryLock() {
	ctx := context.Background()
	c, err := locksidecar.Dial(ctx, "")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer c.Close()

	report, err := c.TryLock(ctx, "nightly-report")
	if err != nil {
		fmt.Println(err)
		return
	}
	_, err = c.TryLock(ctx, "nightly-report")
	fmt.Println("another owner makes the report:", errors.Is(err, locksidecar.ErrHeld))
	fmt.Println("lost:", report.Unlock())
	// Output:
	// another owner makes the report: true
	// lost: <nil>
}

func ExampleConfirmed() {
	ctx := context.Background()
	c, err := locksidecar.Dial(ctx, "")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer c.Close()

	deploy, err := c.Lock(ctx, "deploy")
	if err != nil {
		fmt.Println(err)
		return
	}
	wait, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	switch err := deploy.Unlock(locksidecar.Confirmed(wait)); {
	case err == nil:
		fmt.Println("the next host finds it free")
	case errors.Is(err, locksidecar.ErrUnconfirmed):
		fmt.Println("it is released, but the next host may have to wait:", err)
	default:
		fmt.Println(err) // it was lost while it was held
	}
	// Output: the next host finds it free
}

func ExampleNewOwner() {
	ctx := context.Background()
	c, err := locksidecar.Dial(ctx, "")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer c.Close()

	ctx = locksidecar.NewOwner(ctx)
	outer, _ := c.Lock(ctx, "account:7")
	inner, _ := c.Lock(ctx, "account:7") // the same owner: at once
	fmt.Println(outer.Token() == inner.Token())
	fmt.Println(inner.Unlock(), outer.Unlock()) // now it is free
	// Output:
	// true
	// <nil> <nil>
}

func ExampleSemaphore() {
	ctx := context.Background()
	c, err := locksidecar.Dial(ctx, "")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer c.Close()

	api := c.Semaphore("partner-api", 3) // at most 3 at one time, over all hosts
	bulk, err := api.Acquire(ctx, 2)
	if err != nil {
		fmt.Println(err)
		return
	}
	err = api.Do(ctx, 1, func(ctx context.Context) error {
		// ctx ends when the permit is lost.
		_, err := api.TryAcquire(ctx, 1)
		fmt.Println("all are in use:", errors.Is(err, locksidecar.ErrHeld))
		return nil
	})
	fmt.Println(err)
	fmt.Println("released", bulk.Permits(), "of", bulk.Of(), bulk.Release())
	// Output:
	// all are in use: true
	// <nil>
	// released 2 of 3 <nil>
}

func ExampleRWLock() {
	ctx := context.Background()
	c, err := locksidecar.Dial(ctx, "")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer c.Close()

	catalog := c.RWLock("catalog")
	writer, err := catalog.Lock(ctx) // beside no other hold, on all hosts
	if err != nil {
		fmt.Println(err)
		return
	}
	_, err = catalog.TryRLock(ctx)
	fmt.Println("it is written:", errors.Is(err, locksidecar.ErrHeld))
	// What was written is now read, also by others. No other writer comes in between.
	fmt.Println(writer.Downgrade(ctx), writer.Shared())
	reader, err := catalog.TryRLock(ctx)
	fmt.Println(err)
	fmt.Println(reader.Unlock(), writer.Unlock())
	// Output:
	// it is written: true
	// <nil> true
	// <nil>
	// <nil> <nil>
}
