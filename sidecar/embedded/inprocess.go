package embedded

import (
	"crypto/rand"
	"fmt"

	"github.com/alicebob/miniredis/v2"
)

func startInProcess() (*Redis, error) {
	m := miniredis.NewMiniRedis()
	m.ClockTTL(true)
	// Every user of the host can connect to its loopback port.
	password := rand.Text()
	m.RequireAuth(password)
	if err := m.StartAddr("127.0.0.1:0"); err != nil {
		return nil, fmt.Errorf("the in-process Redis cannot listen on 127.0.0.1: %w", err)
	}
	addPubSub(m)
	return &Redis{
		url:  "redis://:" + password + "@" + m.Addr() + "/0",
		kind: "in-process",
		stop: m.Close,
	}, nil
}
