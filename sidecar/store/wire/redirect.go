package wire

import (
	"strconv"
	"strings"

	"github.com/locksidecar/locksidecar/sidecar/redisop"
)

// A Redirect is what a node of a Cluster answers for a slot that it does not serve: MOVED, because another
// node has it, or ASK, because another node has these keys already.
type Redirect struct {
	Slot    uint16
	Address string // of that node
}

// ParseRedirect reads the error "MOVED slot address" or "ASK slot address" of the node at an address.
func ParseRedirect(text, asked string) (r Redirect, ok bool) {
	fields := strings.Fields(text)
	if len(fields) != 3 || fields[0] != "MOVED" && fields[0] != "ASK" {
		return r, false
	}
	slot, err := strconv.ParseUint(fields[1], 10, 16)
	if err != nil || slot >= redisop.Slots {
		return r, false
	}
	r.Slot = uint16(slot)
	r.Address, ok = NodeAddress(fields[2], asked)
	return r, ok
}

// NodeAddress returns the address of a node as CLUSTER NODES has it. asked is the address of the node
// that answered.
func NodeAddress(field, asked string) (address string, ok bool) {
	addr, hostname, _ := strings.Cut(field, ",")
	hostname, _, _ = strings.Cut(hostname, ",")
	addr, _, _ = strings.Cut(addr, "@")
	colon := strings.LastIndexByte(addr, ':') // an IPv6 address has no brackets
	if colon < 0 {
		return "", false
	}
	host, port := addr[:colon], addr[colon+1:]
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		return "", false
	}
	if host == "" || host == "?" {
		host = hostname
	}
	if host == "" || host == "?" {
		host = hostOf(asked)
	}
	return JoinPort(strings.Trim(host, "[]"), port), host != ""
}

// hostOf returns the host of an address; "": it has no port.
func hostOf(address string) string {
	colon := strings.LastIndexByte(address, ':')
	if colon < 0 {
		return ""
	}
	return strings.Trim(address[:colon], "[]")
}

// JoinPort returns an address. An IPv6 address gets brackets.
func JoinPort(host, port string) string {
	if strings.IndexByte(host, ':') >= 0 {
		host = "[" + host + "]"
	}
	return host + ":" + port
}
