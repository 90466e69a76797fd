// Package copies has the copies that go vet must report.
package copies

import locksidecar "github.com/locksidecar/locksidecar/sdk/go"

func copyLock(l *locksidecar.Lock) locksidecar.Lock { return *l }

func copyClient(c *locksidecar.Client) locksidecar.Client { return *c }
