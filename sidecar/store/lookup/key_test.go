package lookup

import (
	"testing"

	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/sidecar/store/wire"
)

func TestReplyThatTheScriptDoesNotMakeIsAnError(t *testing.T) {
	for _, list := range [][]wire.Reply{
		nil, {{Kind: '$', Text: "lock"}},
		{{Kind: '$', Text: "lock"}, {Kind: '$'}, {Kind: ':'}, {Kind: ':'}, {Kind: ':'}, {Kind: ':'}},
		{{Kind: '$', Text: "lock"}, {Kind: '$'}, {Kind: ':'}, {Kind: ':'}, {Kind: ':'}, {Kind: ':'}, {Kind: '$'}},
		{{Kind: '$', Text: "lock"}, {Kind: '$'}, {Kind: ':'}, {Kind: ':', Num: 2}, {Kind: ':'}, {Kind: ':'}, {Kind: ':'}, {Kind: '$'}, {Kind: '$'}},
		{{Kind: '$', Text: "lock"}, {Kind: '$'}, {Kind: ':'}, {Kind: ':', Num: -1}, {Kind: ':'}, {Kind: ':'}, {Kind: ':'}},
		{{Kind: '$', Text: "lock"}, {Kind: '$'}, {Kind: ':'}, {Kind: ':'}, {Kind: ':'}, {Kind: ':'}, {Kind: ':'}, {Kind: '$'}, {Kind: ':'}},
	} {
		if k, err := ReadKey(wire.Reply{Kind: '*', List: list}); err == nil {
			t.Errorf("%v is read as %+v", list, k)
		}
	}
}

// Any program may have written the owner fields. What a client receives is UTF-8.
func TestKeyHasUTF8Only(t *testing.T) {
	k, err := ReadKey(wire.Reply{Kind: '*', List: []wire.Reply{
		{Kind: '$', Text: protocol.KeyReadWrite}, {Kind: '$', Text: "re\xffad"}, {Kind: ':', Num: 7}, {Kind: ':', Num: 1}, {Kind: ':', Num: 0}, {Kind: ':'}, {Kind: ':'},
		{Kind: '$', Text: "id\xfe:1"}, {Kind: '$', Text: "1"},
	}})
	if err != nil || k.What != "re?ad" || len(k.Owners) != 1 || k.Owners[0].Field != "id?:1" {
		t.Errorf("%+v %v", k, err)
	}
}
