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
		wait, cancel := context.WithTimeout(ctx, 2*time.Second)
		defer cancel()
		l, err := c.Lock(wait, fmt.Sprintf("invoice:%d", invoice))
		if err != nil {
			return err // not held
		}
		defer l.Unlock()

		// work ends when the lock is lost. The resource gets the token, and refuses smaller
		// ones.
		work, stop := l.Context(ctx)
		defer stop()
		fmt.Println("charging", invoice, work.Err() == nil, l.Token() > 0)
		return nil
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
	defer report.Unlock()
	_, err = c.TryLock(ctx, "nightly-report")
	fmt.Println("another owner makes the report:", errors.Is(err, locksidecar.ErrHeld))
	// Output: another owner makes the report: true
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

func ExampleWithOwner() {
	ctx := context.Background()
	c, err := locksidecar.Dial(ctx, "")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer c.Close()

	ctx = locksidecar.WithOwner(ctx)
	outer, _ := c.Lock(ctx, "account:7")
	inner, _ := c.Lock(ctx, "account:7") // the same owner: at once
	fmt.Println(outer.Token() == inner.Token())
	fmt.Println(inner.Unlock(), outer.Unlock()) // now it is free
	// Output:
	// true
	// <nil> <nil>
}
