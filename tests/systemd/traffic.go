//go:build linux

package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	locksidecar "github.com/locksidecar/locksidecar/sdk/go"
)

// report is what the clients have seen since they started.
type report struct {
	Pairs       int           // of acquire and release
	Dials       int           // connections that were made, used for one lock, and closed
	LongestWait time.Duration // for a lock, or for a connection with a lock
	Token       uint64        // of the lock that is held from the start to the end
	Lost        string        // why that lock is lost; "": it is held
	Errors      []string
}

const (
	trafficClients = 4
	trafficWorkers = 4 // of each client: two use one lock for all, two a lock of their own
)

// traffic is a process with clients of the daemon, as a user of the group locksidecar.
type traffic struct {
	cmd   *exec.Cmd
	in    *json.Encoder
	out   *json.Decoder
	close func() error
}

func startTraffic(exe string, uid, gid, group uint32) (*traffic, error) {
	cmd := exec.Command(exe, "-traffic")
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Credential: &syscall.Credential{Uid: uid, Gid: gid, Groups: []uint32{group}},
		Pdeathsig:  syscall.SIGKILL,
	}
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	t := &traffic{cmd: cmd, in: json.NewEncoder(in), out: json.NewDecoder(out), close: in.Close}
	_, err = t.report(false)
	return t, err
}

// report returns what the clients have seen; dial: from now on, some of them connect again and
// again, which works if a connection waits while no daemon runs.
func (t *traffic) report(dial bool) (report, error) {
	var r report
	if err := t.in.Encode(dial); err != nil {
		return r, err
	}
	err := t.out.Decode(&r)
	return r, err
}

// stop ends the clients. Their locks are released.
func (t *traffic) stop() error {
	return errors.Join(t.close(), t.cmd.Wait())
}

// runTraffic is the process: it answers each line with a report, until its input ends.
func runTraffic() error {
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	holder, err := locksidecar.Dial(ctx, "")
	if err != nil {
		return err
	}
	defer holder.Close()
	held, err := holder.Lock(ctx, "held throughout")
	if err != nil {
		return err
	}
	var mu sync.Mutex
	r := report{Token: held.Token()}
	note := func(pairs, dials int, took time.Duration, err error) {
		mu.Lock()
		defer mu.Unlock()
		if err != nil {
			r.Errors = append(r.Errors, err.Error())
			return
		}
		r.Pairs, r.Dials, r.LongestWait = r.Pairs+pairs, r.Dials+dials, max(r.LongestWait, took)
	}
	var workers sync.WaitGroup
	for i := range trafficClients {
		client, err := locksidecar.Dial(ctx, "")
		if err != nil {
			return err
		}
		defer client.Close()
		for j := range trafficWorkers {
			name := "shared by all"
			if j%2 == 1 {
				name = fmt.Sprintf("client %d, worker %d", i, j)
			}
			workers.Go(func() {
				for ctx.Err() == nil {
					start := time.Now()
					err := lockOnce(ctx, client, name)
					if ctx.Err() == nil {
						note(1, 0, time.Since(start), err)
					}
				}
			})
		}
	}
	var dialing atomic.Bool
	in, out := json.NewDecoder(bufio.NewReader(os.Stdin)), json.NewEncoder(os.Stdout)
	for {
		var dial bool
		if in.Decode(&dial) != nil {
			break
		}
		if !dialing.Swap(dial) && dial {
			for i := range 2 {
				workers.Go(func() {
					for dialing.Load() {
						start := time.Now()
						err := dialOnce(ctx, fmt.Sprintf("dialer %d", i))
						note(0, 1, time.Since(start), err)
					}
				})
			}
		}
		mu.Lock()
		answer := r
		answer.Errors = slices.Clone(r.Errors)
		mu.Unlock()
		if err := held.Err(); err != nil {
			answer.Lost = err.Error()
		}
		if err := out.Encode(answer); err != nil {
			return err
		}
	}
	dialing.Store(false)
	stop()
	workers.Wait()
	return nil
}

func lockOnce(ctx context.Context, client *locksidecar.Client, name string) error {
	lock, err := client.Lock(ctx, name)
	if err != nil {
		return err
	}
	return lock.Unlock()
}

func dialOnce(ctx context.Context, name string) error {
	client, err := locksidecar.Dial(ctx, "")
	if err != nil {
		return err
	}
	defer client.Close()
	return lockOnce(ctx, client, name)
}
