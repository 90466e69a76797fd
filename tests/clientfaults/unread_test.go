package clientfaults

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/tests/harness"
)

// A client that reads nothing costs the daemon a bounded amount of memory, and does not delay
// other clients or the stop of the daemon. Its process is alive, so its locks stay held and
// are renewed, also by the next daemon. When the process ends they are free.
//
// Shows docs/guarantees.md: Never reads.
func TestClientThatNeverReadsHarmsNoOtherClient(t *testing.T) {
	t.Parallel()
	r := harness.StartRedis(t)
	d := harness.StartDaemon(t, r.UnixURL(), "--lease=12s")
	good := harness.StartGoWorker(t, d)
	before := harness.ResidentMemory(t, d.PID())
	clients := make([]*exec.Cmd, 3)
	for i := range clients {
		var line func() string
		role := []string{unreadLists, unreadAnswers}[i%2]
		clients[i], line = startRole(t, d, role)
		t.Logf("the daemon stopped reading from the client of %s after %s requests", role, line())
	}
	name := func(i int) string { return fmt.Sprintf("unread %d:0", clients[i].Process.Pid) }
	fixed := func(i int) string { return fmt.Sprintf("unread %d:fixed", clients[i].Process.Pid) }
	awaitRenewals(t, r, name(0), 4)
	grown := harness.ResidentMemory(t, d.PID()) - before
	t.Logf("the daemon grew by %d KiB for %d clients with %d locks each", grown>>10, len(clients), unreadLocks)
	if grown > 96<<20 {
		t.Errorf("the daemon grew by %d MiB", grown>>20)
	}
	good.Lock("good")
	good.Unlock("good")
	if a := good.Try(harness.Command{Do: "lock", As: "x", Name: name(0)}); a.Err != "held" {
		t.Errorf("a request of another client for its lock is answered %+v", a)
	}

	killed := func(i int) {
		clients[i].Process.Kill()
		// The lock with a lease of ten minutes is free because the process has ended.
		good.Lock(fixed(i))
		good.Lock(name(i))
		good.Unlock(fixed(i))
		good.Unlock(name(i))
	}
	killed(0)

	asked := time.Now()
	d.Terminate()
	t.Logf("the stop took %v", time.Since(asked))
	if code := d.ExitCode(); code != 0 {
		t.Errorf("with clients that do not read, the daemon ended with %d", code)
	}
	if n := r.Exists(t.Context(), name(1), fixed(1), name(2), fixed(2)).Val(); n != 4 {
		t.Errorf("the stop left %d of 4 locks", n)
	}
	d.Start("--lease=12s")
	d.AwaitSocket()
	d.AwaitRedis("ok")
	awaitRenewals(t, r, name(1), 4)
	if a := good.Try(harness.Command{Do: "lock", As: "x", Name: fixed(1)}); a.Err != "held" {
		t.Errorf("after the restart, a request of another client for its lock is answered %+v", a)
	}
	killed(1)
	d.Kill()
	clients[2].Process.Kill() // while no daemon runs
	d.Start("--lease=12s")
	d.AwaitSocket()
	killed(2)
}

// unreadLocks is how many renewed locks the process holds that reads nothing.
const unreadLocks = 300

// The roles of a process that reads nothing. A page of a list is a thousand times as long as
// its request; the answer to a ping has about the length of its request.
const (
	unreadLists   = "lists that it does not read"
	unreadAnswers = "answers that it does not read"
)

// runUnread acquires unreadLocks locks, and one more with a lease of ten minutes. After that
// it reads nothing, and sends requests until the daemon has stopped reading. It prints how
// many it sent, and waits.
func runUnread(role string) int {
	err := func() error {
		nc, err := net.Dial("unix", os.Getenv("LOCKSIDECAR_SOCKET"))
		if err != nil {
			return err
		}
		frames := protocol.Hello{ID: 1, V: protocol.Version, Resumable: true}.Append(nil)
		for i := range unreadLocks {
			frames = protocol.Acquire{ID: uint64(i + 2), Name: fmt.Sprintf("unread %d:%d", os.Getpid(), i), WaitMS: protocol.Forever}.Append(frames)
		}
		const last = unreadLocks + 2
		frames = protocol.Acquire{ID: last, Name: fmt.Sprintf("unread %d:fixed", os.Getpid()), WaitMS: protocol.Forever, LeaseMS: 600_000}.Append(frames)
		if _, err := nc.Write(frames); err != nil {
			return err
		}
		in, decoder := protocol.NewReader(nc), protocol.ReplyDecoder{}
		for id := uint64(0); id != last; {
			body, err := in.Next()
			if err != nil {
				return err
			}
			m, err := decoder.Decode(body)
			if err != nil {
				return err
			}
			switch m := m.(type) {
			case *protocol.Answer:
				id = m.ID
			case *protocol.Err:
				return errors.New(m.Msg)
			}
		}
		sent := 0
		for {
			// No room in the socket for half a second: the daemon does not read.
			nc.SetWriteDeadline(time.Now().Add(500 * time.Millisecond))
			id := uint64(last + 1 + sent)
			ask := protocol.List{ID: id}.Append(nil)
			if role == unreadAnswers {
				ask = protocol.Ping{ID: id}.Append(nil)
			}
			if _, err := nc.Write(ask); err != nil {
				break
			}
			sent++
		}
		fmt.Println(sent)
		time.Sleep(10 * time.Minute) // the test kills it before
		return nil
	}()
	fmt.Fprintln(os.Stderr, err)
	return 1
}
