package cluster

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/locksidecar/locksidecar/sidecar/redisop"
	"github.com/locksidecar/locksidecar/sidecar/store/wire"
)

// nodeLine is a line of CLUSTER NODES.
func nodeLine(address, flags string, epoch int, slots ...string) string {
	line := fmt.Sprintf("07c37dfeb235213a872192d90877d0cd55635b91 %s %s - 0 1426238317239 %d connected", address, flags, epoch)
	return strings.Join(append([]string{line}, slots...), " ") + "\n"
}

// owns is which slots an address has, as "0-5460 7".
func (t *Topology) owns(address string) string {
	var ranges []string
	for slot := 0; slot < redisop.Slots; slot++ {
		if t.owner(slot) != address {
			continue
		}
		first := slot
		for slot+1 < redisop.Slots && t.owner(slot+1) == address {
			slot++
		}
		text := strconv.Itoa(first)
		if slot > first {
			text += "-" + strconv.Itoa(slot)
		}
		ranges = append(ranges, text)
	}
	return strings.Join(ranges, " ")
}

const askedNode = "10.0.0.9:7000"

var topologyCases = []struct {
	name, text string
	masters    string // address epoch slots; in order
	replicas   string
}{
	{"one master", nodeLine("10.0.0.1:6379@16379", "myself,master", 3, "0-16383"), "10.0.0.1:6379 3 0-16383", ""},
	{"ranges and single slots", nodeLine("10.0.0.1:6379@16379", "master", 3, "0-5", "7", "16383"), "10.0.0.1:6379 3 0-5 7 16383", ""},
	{"a range of one slot", nodeLine("10.0.0.1:6379@16379", "master", 3, "5-5"), "10.0.0.1:6379 3 5", ""},
	{
		"slots under way",
		nodeLine("10.0.0.1:6379@16379", "myself,master", 3, "0-93", "[93->-292f8b365bb7edb5e285caf0b7e6ddc7265d2f4f]", "[77-<-e7d1eecce10fd6bb5eb35b9f99a514335d9ba9ca]") +
			nodeLine("10.0.0.2:6379@16379", "master", 4, "94-100"),
		"10.0.0.1:6379 3 0-93, 10.0.0.2:6379 4 94-100", "",
	},
	{
		"a node that gets its first slot",
		nodeLine("10.0.0.2:6379@16379", "myself,master", 0, "[77-<-e7d1eecce10fd6bb5eb35b9f99a514335d9ba9ca]") + nodeLine("10.0.0.1:6379@16379", "master", 3, "0-93"),
		"10.0.0.1:6379 3 0-93", "10.0.0.2:6379",
	},
	{"replicas, and a master without slots", nodeLine("10.0.0.1:6379@16379", "master", 3, "1") + nodeLine("10.0.0.2:6379@16379", "slave", 3) + nodeLine("10.0.0.3:6379@16379", "master", 0), "10.0.0.1:6379 3 1", "10.0.0.2:6379 10.0.0.3:6379"},
	{"replicas that are down", nodeLine("10.0.0.1:6379@16379", "master", 3, "1") + nodeLine("10.0.0.2:6379@16379", "slave,fail", 3) + nodeLine("10.0.0.3:6379@16379", "slave,fail?", 3), "10.0.0.1:6379 3 1", "10.0.0.3:6379"},
	{"a master that is down has its slots", nodeLine("10.0.0.1:6379@16379", "master,fail", 3, "1"), "10.0.0.1:6379 3 1", ""},
	{"a node without an address", nodeLine(":0@0", "master,fail,noaddr", 3, "1"), "", ""},
	{"a node in a handshake", nodeLine("10.0.0.2:6379@16379", "handshake", 0) + nodeLine("10.0.0.3:6379@16379", "handshake,master", 0, "1"), "", ""},
	{"the node does not know its own host", nodeLine(":7001@17001", "myself,master", 3, "1"), "10.0.0.9:7001 3 1", ""},
	{"an unknown endpoint", nodeLine("?:7001@17001", "master", 3, "1"), "10.0.0.9:7001 3 1", ""},
	{"a hostname beside the address", nodeLine("10.0.0.1:6379@16379,host.example", "master", 3, "1"), "10.0.0.1:6379 3 1", ""},
	{"a hostname and more", nodeLine("10.0.0.1:6379@16379,host.example,shard-id=69bc", "master", 3, "1"), "10.0.0.1:6379 3 1", ""},
	{"a hostname without an address", nodeLine(":6379@16379,host.example,shard-id=69bc", "master", 3, "1"), "host.example:6379 3 1", ""},
	{"no hostname, and more", nodeLine("10.0.0.1:6379@16379,,tls-port=0,shard-id=69bc", "master", 3, "1"), "10.0.0.1:6379 3 1", ""},
	{"IPv6", nodeLine("fd00::1:6379@16379", "master", 3, "1"), "[fd00::1]:6379 3 1", ""},
	{"no port of the bus", nodeLine("10.0.0.1:6379", "master", 3, "1"), "10.0.0.1:6379 3 1", ""},
	{"port 0, of a node with TLS only", nodeLine("10.0.0.1:0@16379", "master", 3, "1"), "", ""},
	{"no answer", "", "", ""},
}

func TestParseTopology(t *testing.T) {
	for _, tt := range topologyCases {
		for _, text := range []string{tt.text, strings.TrimSuffix(tt.text, "\n"), strings.ReplaceAll(tt.text, "\n", "\r\n")} {
			got, err := ParseTopology(text, askedNode, 0)
			if err != nil {
				t.Errorf("%s: %v", tt.name, err)
				continue
			}
			var masters []string
			covered := 0
			for address, epoch := range got.Masters {
				masters = append(masters, fmt.Sprintf("%s %d %s", address, epoch, got.owns(address)))
			}
			for _, owner := range got.owners {
				if owner != "" {
					covered++
				}
			}
			slices.Sort(masters)
			if text := strings.Join(masters, ", "); text != tt.masters {
				t.Errorf("%s: masters %q, want %q", tt.name, text, tt.masters)
			}
			if text := strings.Join(got.replicas, " "); text != tt.replicas {
				t.Errorf("%s: replicas %q, want %q", tt.name, text, tt.replicas)
			}
			if got.Covered != covered {
				t.Errorf("%s: %d slots are covered, want %d", tt.name, got.Covered, covered)
			}
		}
	}
}

// The id of a node in handshake is one that this node has made up, until the other one tells its own.
func TestNodeInHandshakeIsNotCounted(t *testing.T) {
	line := nodeLine("10.0.0.1:6379@16379", "myself,master", 3, "0-16383")
	greeting := strings.Replace(nodeLine("10.0.0.2:6379@16379", "handshake", 0), "07c37dfe", "00000000", 1)
	got, err := ParseTopology(greeting+line, askedNode, 0)
	if err != nil || len(got.Nodes) != 1 || !got.Nodes[got.ID] || !strings.HasPrefix(got.ID, "07c37dfe") {
		t.Errorf("the nodes are %v, the smallest id is %s: %v", got.Nodes, got.ID, err)
	}
}

var garbageTopologies = map[string]string{
	"too few fields":        "07c37dfe 10.0.0.1:6379@16379 master - 0 0 3\n",
	"an empty line":         nodeLine("10.0.0.1:6379@16379", "master", 3, "1") + "\n" + nodeLine("10.0.0.1:6379@16379", "master", 3, "2"),
	"an error":              "ERR unknown command\n",
	"an epoch":              strings.Replace(nodeLine("10.0.0.1:6379@16379", "master", 3, "1"), " 3 ", " x ", 1),
	"a negative epoch":      nodeLine("10.0.0.1:6379@16379", "master", -1, "1"),
	"a slot too many":       nodeLine("10.0.0.1:6379@16379", "master", 3, "16384"),
	"a range too long":      nodeLine("10.0.0.1:6379@16379", "master", 3, "0-16384"),
	"a range of 17 bits":    nodeLine("10.0.0.1:6379@16379", "master", 3, "0-65536"),
	"a range that falls":    nodeLine("10.0.0.1:6379@16379", "master", 3, "5-4"),
	"a negative slot":       nodeLine("10.0.0.1:6379@16379", "master", 3, "-1"),
	"half of a range":       nodeLine("10.0.0.1:6379@16379", "master", 3, "1-"),
	"two dashes":            nodeLine("10.0.0.1:6379@16379", "master", 3, "1-2-3"),
	"a slot with a sign":    nodeLine("10.0.0.1:6379@16379", "master", 3, "+1"),
	"a slot that is a word": nodeLine("10.0.0.1:6379@16379", "master", 3, "slot"),
}

func TestParseTopologyRefusesGarbage(t *testing.T) {
	for name, text := range garbageTopologies {
		if got, err := ParseTopology(text, askedNode, 0); err == nil || got != nil || !strings.Contains(err.Error(), "a line of CLUSTER NODES") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

var redirectCases = []struct {
	text, address string // "": it is refused
	slot          uint16
}{
	{"MOVED 3999 127.0.0.1:6381", "127.0.0.1:6381", 3999},
	{"ASK 0 127.0.0.1:6381", "127.0.0.1:6381", 0},
	{"MOVED 16383 host.example:6381", "host.example:6381", 16383},
	{"MOVED 1 fd00::1:6381", "[fd00::1]:6381", 1},
	{"MOVED 1 [fd00::1]:6381", "[fd00::1]:6381", 1},
	{"MOVED 1 :6381", "10.0.0.9:6381", 1}, // the node does not know the host
	{"MOVED 1 ?:6381", "10.0.0.9:6381", 1},
	{"MOVED 16384 127.0.0.1:6381", "", 0},
	{"MOVED -1 127.0.0.1:6381", "", 0},
	{"MOVED x 127.0.0.1:6381", "", 0},
	{"MOVED 1 127.0.0.1", "", 0},
	{"MOVED 1 127.0.0.1:0", "", 0},
	{"MOVED 1 127.0.0.1:65536", "", 0},
	{"MOVED 1 127.0.0.1:x", "", 0},
	{"MOVED 1", "", 0},
	{"MOVED 1 127.0.0.1:1 x", "", 0},
	{"moved 1 127.0.0.1:1", "", 0},
	{"TRYAGAIN Multiple keys", "", 0},
	{"", "", 0},
}

func TestParseRedirect(t *testing.T) {
	for _, tt := range redirectCases {
		r, ok := wire.ParseRedirect(tt.text, askedNode)
		if ok != (tt.address != "") || ok && (r.Address != tt.address || r.Slot != tt.slot) {
			t.Errorf("%q: %+v, %v; want %s, slot %d", tt.text, r, ok, tt.address, tt.slot)
		}
	}
}

// isAddress reports whether a text is a host, which may be one that does not exist, and a port.
func isAddress(text string) bool {
	at := strings.LastIndexByte(text, ':')
	n, err := strconv.ParseUint(text[at+1:], 10, 16)
	return at > 0 && err == nil && n != 0
}

func FuzzParseTopology(f *testing.F) {
	for _, tt := range topologyCases {
		f.Add(tt.text)
	}
	for _, text := range garbageTopologies {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		got, err := ParseTopology(text, askedNode, 0)
		if (got == nil) == (err == nil) {
			t.Fatalf("%v and %v", got, err)
		}
		if err != nil {
			return
		}
		covered := 0
		used := make(map[string]bool)
		for _, owner := range got.owners {
			if owner != "" {
				covered++
				used[owner] = true
			}
		}
		if covered != got.Covered {
			t.Fatalf("%d slots are covered, and it says %d", covered, got.Covered)
		}
		for address := range used {
			if _, ok := got.Masters[address]; !ok {
				t.Fatalf("%q has slots, and no epoch", address)
			}
		}
		for address := range got.Masters {
			if !isAddress(address) {
				t.Fatalf("address %q", address)
			}
		}
		for _, address := range got.replicas {
			if !isAddress(address) {
				t.Fatalf("address %q", address)
			}
		}
	})
}

func FuzzParseRedirect(f *testing.F) {
	for _, tt := range redirectCases {
		f.Add(tt.text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		r, ok := wire.ParseRedirect(text, askedNode)
		if !ok {
			return
		}
		if r.Slot >= redisop.Slots || !isAddress(r.Address) {
			t.Fatalf("%q is %+v", text, r)
		}
		again, ok := wire.ParseRedirect(fmt.Sprintf("MOVED %d %s", r.Slot, r.Address), askedNode)
		if !ok || again != r {
			t.Fatalf("%+v is read again as %+v, %v", r, again, ok)
		}
	})
}
