package protocol

import (
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/vmihailenco/msgpack/v5"
)

// Each frame of SPEC.md §11 has the content that the text above it gives, and decodes without an
// error.
func TestFramesOfTheConversationInSpecAreValid(t *testing.T) {
	text, err := os.ReadFile("SPEC.md")
	if err != nil {
		t.Fatal(err)
	}
	_, after, found := strings.Cut(string(text), "## 11. A conversation")
	if !found {
		t.Fatal("there is no §11")
	}
	var arrow, content, digits string
	frames := 0
	answers := make(map[uint64]string) // op by id
	check := func() {
		if digits == "" {
			return
		}
		frames++
		b, err := hex.DecodeString(digits)
		if err != nil || int(binary.BigEndian.Uint32(b)) != len(b)-prefix {
			t.Fatalf("%s: %v, or the length is wrong", content, err)
		}
		var got map[string]any
		if err := msgpack.Unmarshal(b[prefix:], &got); err != nil {
			t.Fatalf("%s: %v", content, err)
		}
		again, _ := json.Marshal(got)
		var read, want any
		if err := json.Unmarshal([]byte(content), &want); err != nil {
			t.Fatalf("%s: %v", content, err)
		}
		_ = json.Unmarshal(again, &read)
		if !reflect.DeepEqual(read, want) {
			t.Errorf("the frame has %s, the text %s", again, content)
		}
		if arrow == "→" {
			m, err := new(RequestDecoder).Decode(b[prefix:])
			if err != nil {
				t.Errorf("%s: %v", content, err)
				return
			}
			answers[m.RequestID()], _ = got["op"].(string)
		} else if _, err := decodeReply(b[prefix:], answers[parse(t, []byte(content)).ID]); err != nil {
			t.Errorf("%s: %v", content, err)
		}
		digits = ""
	}
	for line := range strings.Lines(after) {
		line = strings.TrimRight(line, "\n")
		if more, ok := strings.CutPrefix(line, "    "); ok {
			digits += more
			continue
		}
		check()
		if a, c, ok := strings.Cut(line, " {"); ok && (a == "→" || a == "←") {
			arrow, content = a, "{"+c
		}
	}
	check()
	if frames < 15 {
		t.Errorf("%d frames were read", frames)
	}
}
