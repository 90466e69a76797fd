// Command buildfarm makes targets on a farm with eight slots, on any number of hosts.
//
//	buildfarm zlib curl kernel:4
//
// kernel takes four slots, and make runs as many jobs; the others take one.
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"

	locksidecar "github.com/locksidecar/locksidecar/sdk/go"
)

const slots = 8 // of the farm

func main() {
	// These signals end the builds, and then their slots are free.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	client, err := locksidecar.Dial(ctx, "")
	if err != nil {
		log.Fatal(err)
	}
	farm := client.Semaphore("build-slots", slots)

	var builds sync.WaitGroup
	var failed atomic.Bool
	for _, arg := range os.Args[1:] {
		builds.Go(func() {
			if err := build(ctx, farm, arg); err != nil {
				log.Printf("%s: %v", arg, err)
				failed.Store(true)
				return
			}
			fmt.Println(arg, "is built")
		})
	}
	builds.Wait()
	if failed.Load() {
		os.Exit(1) // the session ends with the process
	}
}

// build waits for the slots of a target, TARGET or TARGET:SLOTS, and makes it.
func build(ctx context.Context, farm *locksidecar.Semaphore, arg string) error {
	target, size, isLarge := strings.Cut(arg, ":")
	jobs := 1
	if isLarge {
		var err error
		if jobs, err = strconv.Atoi(size); err != nil {
			return err
		}
	}
	return farm.Do(ctx, jobs, func(ctx context.Context) error { // ctx ends if the slots are lost
		cmd := exec.CommandContext(ctx, "make", fmt.Sprintf("-j%d", jobs), target)
		cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
		// make passes SIGTERM to its jobs. After SIGKILL, the default, they would go on without slots.
		cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
		return cmd.Run()
	})
}
