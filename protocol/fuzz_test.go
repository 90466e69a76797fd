package protocol

import (
	"bytes"
	"errors"
	"reflect"
	"slices"
	"testing"
	"testing/iotest"

	"github.com/vmihailenco/msgpack/v5"
)

func FuzzRequest(f *testing.F) {
	for _, v := range vectors(f) {
		if b := fuzzSeed(v); v.To != "client" && v.Kind != "reply" {
			f.Add(b)
		}
	}
	for _, m := range everyRequest {
		f.Add(m.Append(nil)[prefix:])
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		var d RequestDecoder
		m, err := d.Decode(body)
		if err != nil {
			checkError(t, err)
			return
		}
		checkID(t, body, m.RequestID())
		again, err := new(RequestDecoder).Decode(m.Append(nil)[prefix:])
		if err != nil || !reflect.DeepEqual(m, again) {
			t.Fatalf("%+v was written and read as %+v, %v", m, again, err)
		}
	})
}

func FuzzReply(f *testing.F) {
	for _, v := range vectors(f) {
		for i, op := range ops {
			if b := fuzzSeed(v); v.Kind != "request" && (v.Answers == op || v.Answers == "" && i == 0) {
				f.Add(b, byte(i))
			}
		}
	}
	for _, m := range everyReply {
		for i, op := range ops {
			if answers(m) == op {
				f.Add(m.Append(nil)[prefix:], byte(i))
			}
		}
	}
	f.Fuzz(func(t *testing.T, body []byte, answers byte) {
		op := ops[int(answers)%len(ops)]
		got, err := decodeReply(body, op)
		if err != nil {
			checkError(t, err)
			return
		}
		m, ok := got.(Reply)
		if !ok || isTruncated(got) {
			return
		}
		again, err := decodeReply(m.Append(nil)[prefix:], op)
		if err != nil || !reflect.DeepEqual(got, again) {
			t.Fatalf("%+v was written and read as %+v, %v", got, again, err)
		}
	})
}

// FuzzReader checks that the frames of a stream do not depend on the pieces in which it arrives,
// and that every frame that is written is read again.
func FuzzReader(f *testing.F) {
	for _, v := range vectors(f) {
		f.Add(fuzzSeed(v), uint16(0))
	}
	f.Fuzz(func(t *testing.T, stream []byte, n uint16) {
		whole := NewReader(bytes.NewReader(stream))
		pieces := NewReader(iotest.OneByteReader(bytes.NewReader(stream)))
		for {
			a, errA := whole.Next()
			b, errB := pieces.Next()
			if !bytes.Equal(a, b) || (errA == nil) != (errB == nil) {
				t.Fatalf("whole: %x, %v; byte by byte: %x, %v", a, errA, b, errB)
			}
			if errA != nil {
				if errA.Error() != errB.Error() {
					t.Fatalf("whole: %v; byte by byte: %v", errA, errB)
				}
				break
			}
			if len(a) == 0 || len(a) > MaxFrame {
				t.Fatalf("a frame of %d bytes", len(a))
			}
		}

		// The input as the length of a name.
		frames := Info{ID: 1, Name: string(bytes.Repeat([]byte{'n'}, 1+int(n)%60_000))}.Append(nil)
		frames = Ping{ID: uint64(n)}.Append(frames)
		r := NewReader(iotest.HalfReader(bytes.NewReader(frames)))
		var read []byte
		for range 2 {
			body, err := r.Next()
			if err != nil {
				t.Fatal(err)
			}
			read = append(append(read, 0, byte(len(body)>>16), byte(len(body)>>8), byte(len(body))), body...)
		}
		if !bytes.Equal(read, frames) {
			t.Fatal("the frames that were read differ from those that were written")
		}
	})
}

func fuzzSeed(v vector) []byte {
	var t testing.T
	b := v.frame(&t)
	return b[min(prefix, len(b)):]
}

func checkError(t *testing.T, err error) {
	var conn *ConnError
	var request *RequestError
	switch {
	case errors.As(err, &conn) && conn.Code == BadFrame && conn.Msg != "":
	case errors.As(err, &request) && request.Code == BadRequest && request.Msg != "":
	default:
		t.Fatalf("neither ends the connection nor answers a request: %#v", err)
	}
	// The error can be encoded.
	if conn != nil {
		conn.Reply().Append(nil)
	} else {
		request.Reply().Append(nil)
	}
}

// checkID compares the id with that of another msgpack decoder, which reads the whole body.
func checkID(t *testing.T, body []byte, id uint64) {
	dec := msgpack.NewDecoder(bytes.NewReader(body))
	n, err := dec.DecodeMapLen()
	if err != nil {
		t.Fatal(err)
	}
	for range n {
		key, err := dec.DecodeString()
		if err != nil {
			t.Fatal(err)
		}
		if key == "id" {
			got, err := dec.DecodeUint64()
			if err != nil || got != id {
				t.Fatalf("the id is %d, %v; read as %d", got, err, id)
			}
			continue
		}
		if err := dec.Skip(); err != nil {
			t.Fatalf("the value of %q: %v", key, err)
		}
	}
}

// isTruncated reports whether Append would truncate a text of the message, or whether it does
// not fit into a frame. The decoder accepts such messages, although no sidecar sends them.
func isTruncated(m any) bool {
	long := func(r *LockRow) bool {
		cmd := len(r.Cmd)
		for _, w := range r.Waiters {
			cmd = max(cmd, len(w.Cmd))
		}
		return cmd > MaxCmd || len(r.RemoteField) > MaxField || len(r.Shard) > MaxField || r.Shard != "" && !r.InCluster || len(r.Waiters) > MaxWaiters
	}
	switch m := m.(type) {
	case *Err:
		return len(m.Code) > MaxClient || len(m.Msg) > MaxMessage
	case *LostEvent:
		return len(m.Reason) > MaxClient
	case *HelloOK:
		return len(m.Sidecar) > MaxClient || len(m.Version) > MaxClient
	case *MetricsOK:
		return len(m.Text) > MetricsRoom
	case *PingOK:
		return len(m.Redis) > MaxMessage || len(m.RedisAddress) > MaxField || len(m.RedisRunID) > MaxField || len(m.KeyPrefix) > MaxField ||
			len(m.RedisRisk) > MaxMessage || len(m.Trouble) > MaxMessage
	case *InfoOK:
		return m.Lock != nil && (long(m.Lock) || m.Lock.Size() > ListRoom)
	case *WhoOK:
		isLong := len(m.Redis) > MaxMessage || len(m.Key) > MaxClient || len(m.Msg) > MaxMessage || len(m.Trouble) > MaxMessage
		size := 0
		for _, r := range []*LockRow{m.Lock, m.Holder} {
			if r != nil {
				isLong = isLong || long(r)
				size += r.Size()
			}
		}
		for _, o := range slices.Concat(m.Owners, m.Queue) {
			isLong = isLong || len(o.Field) > MaxField || len(o.Sidecar) > MaxClient || len(o.Host) > MaxClient
		}
		return isLong || len(m.Owners) > MaxOwners || len(m.Queue) > MaxOwners || size > MaxFrame/4
	case *ListOK:
		size := 0
		for i := range m.Locks {
			if long(&m.Locks[i]) {
				return true
			}
			size += m.Locks[i].Size()
		}
		return size > ListRoom
	case *StatusOK:
		long := len(m.Version) > MaxClient || len(m.Redis) > MaxMessage || len(m.RedisAddress) > MaxField || len(m.RedisRunID) > MaxField ||
			len(m.KeyPrefix) > MaxField || len(m.RedisRisk) > MaxMessage || len(m.Trouble) > MaxMessage || m.Restart != nil && len(m.Restart.Reason) > MaxMessage
		size := 0
		for _, a := range []*AgeRow{m.OldestWaiter, m.OldestHold} {
			if a != nil {
				long = long || len(a.Cmd) > MaxCmd
				size += len(a.Name)
			}
		}
		for _, l := range m.Lost {
			long = long || len(l.Reason) > MaxClient
			size += len(l.Reason) + 20
		}
		for _, s := range m.Shards {
			long = long || len(s.Address) > MaxField || len(s.Redis) > MaxReason
			size += len(s.Address) + len(s.Redis) + 150
		}
		return long || len(m.Shards) > MaxShards || size > ListRoom-4*MaxMessage
	case *EventsOK:
		size := 0
		for i := range m.Events {
			e := &m.Events[i]
			if len(e.Kind) > MaxClient || len(e.Cmd) > MaxCmd || len(e.Reason) > MaxClient || len(e.RemoteField) > MaxField || len(e.RemoteHost) > MaxClient || len(e.Msg) > MaxMessage {
				return true
			}
			size += e.Size()
		}
		return size > ListRoom
	}
	return false
}
