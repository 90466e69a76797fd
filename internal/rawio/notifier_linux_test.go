package rawio_test

import (
	"testing"

	"github.com/locksidecar/locksidecar/internal/rawio"
)

func TestReadNotifierNotifiesOnceWhenArmed(t *testing.T) {
	here, there := pair(t)
	n, err := rawio.NewReadNotifier(raw(t, here))
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close()
	send := func() {
		t.Helper()
		if _, err := there.Write([]byte("x")); err != nil {
			t.Fatal(err)
		}
	}
	send()
	if n.HasNotified() {
		t.Error("it notified before it was armed")
	}
	if !n.Arm() {
		t.Error("it cannot be armed")
	}
	n.Wait() // for the data that arrived before
	send()
	if n.HasNotified() {
		t.Error("it notified twice")
	}
	n.Arm()
	n.Disarm()
	if n.HasNotified() {
		t.Error("it notified while it was disarmed")
	}
	n.Interrupt()
	n.Wait()

	n.Arm()
	n.Wait()
	there.Close()
	n.Arm()
	n.Wait() // for the end
	if n.HasNotified() {
		t.Error("it notified twice of the end")
	}
	here.Close()
	if n.Arm() {
		t.Error("it was armed for a connection that is closed")
	}
}

func TestNoReadNotifierForClosedConnection(t *testing.T) {
	here, _ := pair(t)
	conn := raw(t, here)
	here.Close()
	if n, err := rawio.NewReadNotifier(conn); err == nil {
		n.Close()
		t.Error("there is a notifier for a connection that is closed")
	}
}
