//go:build linux

package locksidecartest_test

import (
	"context"
	"errors"
	"fmt"

	locksidecar "github.com/locksidecar/locksidecar/sdk/go"
	"github.com/locksidecar/locksidecar/sdk/go/locksidecartest"
)

// A test starts a sidecar, and sees what its program does when another host has the lock.
func ExampleSidecar_Steal() {
	ctx := context.Background()
	s, err := locksidecartest.Start(locksidecartest.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer s.Close()
	c, err := s.Dial(ctx)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer c.Close()

	release, err := s.Steal(ctx, "report")
	if err != nil {
		fmt.Println(err)
		return
	}
	_, err = c.TryLock(ctx, "report")
	fmt.Println(errors.Is(err, locksidecar.ErrHeld))
	if err := release(); err != nil {
		fmt.Println(err)
		return
	}
	_, err = c.Lock(ctx, "report")
	fmt.Println(err)
	// Output:
	// true
	// <nil>
}
