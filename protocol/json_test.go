package protocol

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"testing"
	"unicode/utf8"
)

// decodeAny decodes a body as a request or as a reply, and returns a copy that stays valid.
func decodeAny(t *testing.T, v vector, body []byte) any {
	t.Helper()
	if v.Kind == "request" {
		m, err := new(RequestDecoder).Decode(body)
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	m, err := decodeReply(body, v.Answers)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// Every request, answer and event of the vectors passes through JSON in both directions. By
// TestVectorsCoverTheProtocol they have every op and every field.
func TestEveryMessagePassesThroughJSON(t *testing.T) {
	for _, v := range vectors(t) {
		if v.Kind == "bad" {
			continue
		}
		t.Run(v.Name, func(t *testing.T) {
			whole := v.frame(t)
			line, err := AppendJSON(nil, whole[prefix:])
			if err != nil {
				t.Fatal(err)
			}
			again, err := AppendFrame([]byte("before"), line)
			if errors.Is(err, errTooLarge) && bytes.Contains(line, []byte(`"AAAA`)) {
				return // its binary field does not fit into a frame as base64
			}
			if err != nil {
				t.Fatalf("%.999s: %v", line, err)
			}
			again = again[len("before"):]
			if got, want := decodeAny(t, v, again[prefix:]), decodeAny(t, v, whole[prefix:]); !reflect.DeepEqual(got, want) {
				t.Errorf("%.999s was read as %+v, want %+v", line, got, want)
			}
			if !v.Canonical {
				return
			}
			if !bytes.Equal(again, whole) {
				t.Errorf("%.999s is the frame\n%x, the vector is\n%x", line, again, whole)
			}
			if fromMessage, err := AppendFrame(nil, v.Message); err != nil || !bytes.Equal(fromMessage, whole) {
				t.Errorf("the message is the frame\n%x (%v), the vector is\n%x", fromMessage, err, whole)
			}
			if got := exactly(t, line); !reflect.DeepEqual(got, exactly(t, v.Message)) {
				t.Errorf("the frame is the line\n%s, the vector has\n%s", line, v.Message)
			}
		})
	}
}

// exactly returns the value of JSON with every number as its digits.
func exactly(t *testing.T, text []byte) (v any) {
	t.Helper()
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	if err := d.Decode(&v); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return v
}

// What no field of the protocol has, and an ignored field may have.
func TestIgnoredFieldsPassThroughJSON(t *testing.T) {
	for _, tt := range []struct{ value, want string }{
		{"\xc0", `null`},
		{"\xcb\x40\x09\x99\x99\x99\x99\x99\x9a", `3.2`},
		{"\xca\x3f\xc0\x00\x00", `1.5`},
		{"\xcb\x7f\xf0\x00\x00\x00\x00\x00\x00", `null`},
		{"\xc4\x03\x00\xff\x01", `"AP8B"`},
		{"\xd4\x01\x02", `null`},
		{"\xcf\xff\xff\xff\xff\xff\xff\xff\xff", `18446744073709551615`},
		{"\xd3\x80\x00\x00\x00\x00\x00\x00\x00", `-9223372036854775808`},
		{"\xa2\xff\n", "\"\ufffd\\u000a\""},
		{"\xa9\xc2\x85\xe2\x80\xa8\xe2\x80\xa9\x7f", `"\u0085\u2028\u2029\u007f"`},
		{"\x82\x01\x02\xa1a\x03", `null`},
		{"\x92\x81\xa1a\x90\x80", `[{"a":[]},{}]`},
	} {
		got, err := AppendJSON(nil, []byte("\x81\xa1x"+tt.value))
		if want := `{"x":` + tt.want + `}`; err != nil || string(got) != want {
			t.Errorf("%x is %s (%v), want %s", tt.value, got, err, want)
		}
	}
}

func TestLinesAreRead(t *testing.T) {
	for line, want := range map[string]string{
		` {} `:                        "\x80",
		"{\"a\":1}\r":                 "\x81\xa1a\x01",
		`{"a":5000.0}`:                "\x81\xa1a\xcd\x13\x88",
		`{"a":5e3}`:                   "\x81\xa1a\xcd\x13\x88",
		`{"a":-0}`:                    "\x81\xa1a\x00",
		`{"a":-3.0}`:                  "\x81\xa1a\xfd",
		`{"a":1.5}`:                   "\x81\xa1a\xcb\x3f\xf8\x00\x00\x00\x00\x00\x00",
		`{"a":9223372036854775807}`:   "\x81\xa1a\xcf\x7f\xff\xff\xff\xff\xff\xff\xff",
		`{"a":"\ud83d\ude00\\ud800"}`: "\x81\xa1a\xaa\xf0\x9f\x98\x80\\ud800",
		`{"a":[null,true,{"b":[]}]}`:  "\x81\xa1a\x93\xc0\xc3\x81\xa1b\x90",
		// Whether a key may occur twice is left to the decoder.
		`{"a":1,"a":2}`: "\x82\xa1a\x01\xa1a\x02",
	} {
		frame, err := AppendFrame(nil, []byte(line))
		if err != nil || string(frame[prefix:]) != want {
			t.Errorf("%s is %x (%v), want %x", line, frame, err, want)
		}
	}
	for line, want := range map[string]string{
		``:                      "not JSON",
		`hello`:                 "not JSON",
		`{"a":1`:                "not JSON",
		`{"a":1} {}`:            "not JSON",
		`[1]`:                   "not a JSON object",
		`7`:                     "not a JSON object",
		"{\"a\":\"\xff\"}":      "not UTF-8",
		`{"a":"\ud800"}`:        "surrogate",
		`{"a":"\udc00\ud800"}`:  "surrogate",
		`{"a":"\ud800\\udc00"}`: "surrogate",
		`{"a":1e999}`:           "out of range",
		`{"a":` + strings.Repeat("[", 40) + strings.Repeat("]", 40) + `}`: "nest too deep",
		`{"a":"` + strings.Repeat("x", MaxFrame) + `"}`:                   "does not fit",
		`{"a":[` + strings.Repeat("1,", 3*MaxFrame) + `1]}`:               "does not fit",
	} {
		if frame, err := AppendFrame(nil, []byte(line)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.80q is %.80x, %v; want an error with %q", line, frame, err, want)
		}
	}
	largest := `{"a":"` + strings.Repeat("x", MaxFrame-6) + `"}` // with 6 bytes of headers and key
	if frame, err := AppendFrame(nil, []byte(largest)); err != nil || len(frame) != prefix+MaxFrame {
		t.Errorf("the largest line: %d bytes, %v", len(frame), err)
	}
}

// A line that is a frame becomes the same frame again after it was a line.
func FuzzFrameOfJSON(f *testing.F) {
	for _, v := range vectors(f) {
		if v.Kind != "bad" {
			f.Add([]byte(v.Message))
		}
	}
	f.Add([]byte(`{"a":[1.5,-7,null,"\u2028\ud83d\ude00",{}],"a":5e3}`))
	f.Fuzz(func(t *testing.T, line []byte) {
		frame, err := AppendFrame(nil, line)
		if err != nil {
			return
		}
		again, err := AppendJSON(nil, frame[prefix:])
		if err != nil {
			return // a key twice, or nested too deep
		}
		if bytes.ContainsAny(again, "\n\r\u2028\u2029\u0085") {
			t.Fatalf("%q became the line %q", line, again)
		}
		if second, err := AppendFrame(nil, again); err != nil || !bytes.Equal(second, frame) {
			t.Fatalf("%q became %x, then %q, then %x (%v)", line, frame, again, second, err)
		}
	})
}

// Each body that the parser accepts is a line of valid JSON.
func FuzzJSONOfFrame(f *testing.F) {
	for _, v := range vectors(f) {
		if v.Kind != "bad" {
			b, err := hex.DecodeString(v.Hex)
			if err != nil {
				f.Fatal(err)
			}
			f.Add(b[prefix:])
		}
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		if len(body) > MaxFrame {
			return
		}
		if line, err := AppendJSON(nil, body); err == nil && (!json.Valid(line) || line[0] != '{' || !utf8.Valid(line)) {
			t.Fatalf("%x became %q", body, line)
		}
	})
}
