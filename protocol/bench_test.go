package protocol

import "testing"

var benchAcquire = Acquire{ID: 12345, Name: "invoice:42", Owner: 7, WaitMS: 2000}

func BenchmarkAcquireAppend(b *testing.B) {
	buf := make([]byte, 0, 512)
	b.ReportAllocs()
	for b.Loop() {
		buf = benchAcquire.Append(buf[:0])
	}
}

func BenchmarkAcquireDecode(b *testing.B) {
	var d RequestDecoder
	body := benchAcquire.Append(nil)[prefix:]
	b.ReportAllocs()
	for b.Loop() {
		if _, err := d.Decode(body); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkClaimAppend(b *testing.B) {
	m := largestClaim(true)
	buf := make([]byte, 0, prefix+MaxFrame)
	b.ReportAllocs()
	for b.Loop() {
		buf = m.Append(buf[:0])
	}
}

func BenchmarkClaimDecode(b *testing.B) {
	var d RequestDecoder
	body := largestClaim(true).Append(nil)[prefix:]
	b.ReportAllocs()
	for b.Loop() {
		if _, err := d.Decode(body); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkAcquireOKAppend(b *testing.B) {
	m := AcquireOK{ID: 12345, Token: 1763694000000001, Hold: 77, Count: 1, DeadlineNS: 86429698000000}
	buf := make([]byte, 0, 512)
	b.ReportAllocs()
	for b.Loop() {
		buf = m.Append(buf[:0])
	}
}

func BenchmarkAcquireOKDecode(b *testing.B) {
	var d ReplyDecoder
	var ok AcquireOK
	body := AcquireOK{ID: 12345, Token: 1763694000000001, Hold: 77, Count: 1, DeadlineNS: 86429698000000}.Append(nil)[prefix:]
	b.ReportAllocs()
	for b.Loop() {
		m, err := d.Decode(body)
		if err != nil {
			b.Fatal(err)
		}
		if err := m.(*Answer).Unpack(&ok); err != nil {
			b.Fatal(err)
		}
	}
}
