package store

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/locksidecar/locksidecar/sidecar/store/lookup"
	"github.com/locksidecar/locksidecar/sidecar/store/wire"
)

// announce publishes a host, and returns when Redis has executed it.
func (r *recorder) announce(h lookup.Host) {
	r.t.Helper()
	r.Announce(h)
	r.host(ourUUID) // sent after it
}

type foundHost struct {
	host  lookup.Host
	known bool
	err   error
}

func (r *recorder) host(uuid string) foundHost {
	r.t.Helper()
	found := make(chan foundHost, 1)
	r.Host(uuid, func(h lookup.Host, known bool, err error) { found <- foundHost{h, known, err} })
	return recv(r.t, found, "host")
}

type hostPage struct {
	hosts []lookup.Host
	last  string
	err   error
}

func (r *recorder) hostPage(after string) hostPage {
	r.t.Helper()
	read := make(chan hostPage, 1)
	r.Hosts(after, func(hosts []lookup.Host, last string, err error) { read <- hostPage{hosts, last, err} })
	return recv(r.t, read, "page of hosts")
}

var aHost = lookup.Host{Name: "db-7", Version: "0.4.0", PID: 4711, Started: 1763694000000}

// A host is found by the uuid of its sidecar, under keys that expire, by sidecars with the same
// prefix only.
func TestHostsAreFoundByUUID(t *testing.T) {
	for _, prefix := range []string{"", "app1:", "{app1}:"} {
		t.Run("prefix "+prefix, func(t *testing.T) {
			s := startRedis(t)
			r := connected(t, s.url(), func(c *Config) { c.KeyPrefix = prefix })
			r.announce(aHost)
			want := aHost
			want.UUID = ourUUID
			if got := r.host(ourUUID); got.err != nil || !got.known || got.host != want {
				t.Errorf("found %+v", got)
			}
			if got := r.host(otherUUID); got.err != nil || got.known {
				t.Errorf("a sidecar that published nothing is found as %+v", got)
			}
			if got := r.hostPage(""); got.err != nil || len(got.hosts) != 1 || got.hosts[0] != want || got.last != "" {
				t.Errorf("listed %+v", got)
			}
			k := wire.NewKeyspace(prefix)
			for _, key := range []string{k.Host(ourUUID), k.Hosts()} {
				if ttl := s.admin().PTTL(ctx, key).Val(); ttl <= 0 || ttl > lookup.HostExpiry {
					t.Errorf("%s expires in %v", key, ttl)
				}
			}
			other := connected(t, s.url(), func(c *Config) { c.KeyPrefix, c.UUID = "another:", otherUUID })
			if got := other.hostPage(""); got.err != nil || len(got.hosts) != 0 {
				t.Errorf("with another prefix, listed %+v", got)
			}
		})
	}
}

func manyHosts(s *server, n int) (uuids []string) {
	k := wire.NewKeyspace("")
	for i := range n {
		uuid := fmt.Sprintf("22222222-0000-0000-0000-%012d", i)
		uuids = append(uuids, uuid)
		s.admin().ZAdd(ctx, k.Hosts(), redis.Z{Member: uuid})
		s.admin().HSet(ctx, k.Host(uuid), "about", `{"host":"many"}`)
	}
	return uuids
}

// Pages of hosts are complete, and without duplicates.
func TestHostsAreListedInPages(t *testing.T) {
	s := startRedis(t)
	r := connected(t, s.url())
	uuids := manyHosts(s, 2*lookup.HostPage+1)
	var got []string
	for after := ""; ; {
		p := r.hostPage(after)
		if p.err != nil {
			t.Fatal(p.err)
		}
		for _, h := range p.hosts {
			got = append(got, h.UUID)
		}
		if after = p.last; after == "" {
			break
		}
	}
	if strings.Join(got, " ") != strings.Join(uuids, " ") {
		t.Errorf("listed %d hosts, want %d in their order", len(got), len(uuids))
	}
}

// Sidecars remove from the index what belongs to sidecars that ended.
func TestEndedHostsLeaveTheIndex(t *testing.T) {
	s := startRedis(t)
	r := connected(t, s.url())
	k := wire.NewKeyspace("")
	for _, uuid := range manyHosts(s, 5)[1:] {
		s.admin().Del(ctx, k.Host(uuid))
	}
	end := time.Now().Add(patience)
	for s.admin().ZCard(ctx, k.Hosts()).Val() != 2 && time.Now().Before(end) {
		r.announce(aHost)
	}
	if got := s.admin().ZRange(ctx, k.Hosts(), 0, -1).Val(); len(got) != 2 || got[0] != ourUUID {
		t.Errorf("the index has %v", got)
	}
}

// longMember is a member of the index of hosts that is too long to be kept.
func longMember(first string, i int) redis.Z {
	return redis.Z{Member: fmt.Sprintf("%s%0*d", first, wire.MaxReplyText+1, i)}
}

// Texts of any length in what hosts publish cost no connection, and hide no other host.
func TestLongTextsOfOtherProgramsInHosts(t *testing.T) {
	s := startRedis(t)
	k := wire.NewKeyspace("")
	uuids := manyHosts(s, lookup.HostPage)
	s.admin().HSet(ctx, k.Host(otherUUID), "about", `{"host":"`+strings.Repeat("x", wire.MaxReplyText)+`"}`)
	s.admin().ZAdd(ctx, k.Hosts(), longMember("!", 0), longMember("12", 1), longMember("z", 2), redis.Z{Member: otherUUID})
	r := connected(t, s.url())
	r.announce(aHost)
	if got := r.host(otherUUID); got.err != nil || got.known {
		t.Errorf("found %+v", got)
	}
	var got []string
	for after, more := "", true; more; more = after != "" {
		p := r.hostPage(after)
		if p.err != nil {
			t.Fatal(p.err)
		}
		for _, h := range p.hosts {
			got = append(got, h.UUID)
		}
		after = p.last
	}
	if want := append([]string{ourUUID}, uuids...); !slices.Equal(got, want) {
		t.Errorf("listed %d hosts, want %d: %v", len(got), len(want), got)
	}
	if res := r.one(takeOp("a", 1)); res.Token == 0 {
		t.Errorf("%+v", res)
	}
	select {
	case down := <-r.downs:
		t.Errorf("the connection ended: %v", down)
	default:
	}
}

// Sidecars remove from the index what is no uuid, also next to members that are too long to be
// kept. No such member is listed as a host.
func TestMembersThatAreNoUUIDsLeaveTheIndex(t *testing.T) {
	s := startRedis(t)
	k := wire.NewKeyspace("")
	uuids := manyHosts(s, 1)
	s.admin().ZAdd(ctx, k.Hosts(), longMember("!", 0))
	for _, member := range []string{"", "-", "{" + otherUUID + "}", otherUUID + "0", "zz"} {
		s.admin().ZAdd(ctx, k.Hosts(), redis.Z{Member: member})
		s.admin().HSet(ctx, k.Host(member), "about", `{"host":"none"}`)
	}
	r := connected(t, s.url())
	if got := r.hostPage(""); got.err != nil || len(got.hosts) != 1 || got.hosts[0].UUID != uuids[0] {
		t.Errorf("listed %+v", got)
	}
	end := time.Now().Add(patience)
	for s.admin().ZCard(ctx, k.Hosts()).Val() != 3 && time.Now().Before(end) {
		r.announce(aHost)
	}
	if got := s.admin().ZRange(ctx, k.Hosts(), 1, -1).Val(); !slices.Equal(got, []string{ourUUID, uuids[0]}) {
		t.Errorf("the index has %.50q", got)
	}
}

// A key of another type under the name of a host hides that host alone.
func TestHostKeyOfAnotherType(t *testing.T) {
	s := startRedis(t)
	k := wire.NewKeyspace("")
	uuids := manyHosts(s, 3)
	s.admin().Set(ctx, k.Host(uuids[1]), "text", 0)
	r := connected(t, s.url())
	got := r.hostPage("")
	if got.err != nil || len(got.hosts) != 2 || got.hosts[0].UUID != uuids[0] || got.hosts[1].UUID != uuids[2] {
		t.Errorf("listed %+v", got)
	}
	if got := r.host(uuids[1]); got.err != nil || got.known {
		t.Errorf("found %+v", got)
	}
	s.admin().ZRem(ctx, k.Hosts(), uuids[0], uuids[2])
	if got := r.hostPage(""); got.err != nil || len(got.hosts) != 0 {
		t.Errorf("of this host alone, listed %+v", got)
	}
}

// A user who may not store the name of its host gets its locks all the same, and one line in the
// log.
func TestHostNameThatIsNotPermitted(t *testing.T) {
	s := startRedis(t)
	r := connected(t, s.userURL("nameless", "~a", "~redisson_*", "&*", "+@all"))
	r.announce(aHost)
	r.announce(aHost)
	if got := r.host(ourUUID); got.err == nil || got.known {
		t.Errorf("found %+v", got)
	}
	if res := r.one(takeOp("a", 1)); res.Token == 0 {
		t.Errorf("%+v", res)
	}
	if log := r.logged(); strings.Count(log, "cannot show the name of this one") != 1 || !strings.Contains(log, "locksidecar_*") {
		t.Errorf("the log has: %s", log)
	}
}

// The danger: a person changes the ACL, and Redis lacks replicas.
func TestHostNameThatIsRefusedForAnotherReasonBlamesNoACL(t *testing.T) {
	s := startRedis(t)
	r := connected(t, s.url())
	must(s.admin().ConfigSet(ctx, "min-replicas-to-write", "1").Result())
	r.announce(aHost)
	if got := r.host(ourUUID); got.known {
		t.Errorf("found %+v", got)
	}
	if log := r.logged(); strings.Contains(log, "ACL") {
		t.Errorf("the log has: %s", log)
	}
}

// What another program wrote under the key of a host is not printed as it is.
func TestHostNamesArePrintable(t *testing.T) {
	s := startRedis(t)
	r := connected(t, s.url())
	k := wire.NewKeyspace("")
	for text, want := range map[string]string{
		`{"host":"db\u001b[31m7","pid":-1}`:          "db?[31m7",
		`{"host":"` + strings.Repeat("ä", 99) + `"}`: strings.Repeat("ä", 32),
		`{"host":""}`: "",
		`no JSON`:     "",
	} {
		s.admin().HSet(ctx, k.Host(otherUUID), "about", text)
		if got := r.host(otherUUID); got.err != nil || got.known != (want != "") || got.host.Name != want || got.host.PID < 0 {
			t.Errorf("%.40s: %+v", text, got)
		}
	}
}

// Questions and answers pass between two sidecars whole, whatever bytes they have. A sidecar that
// is not connected is reported at once.
func TestQuestionsAndAnswers(t *testing.T) {
	s := startRedis(t)
	type message struct{ from, body string }
	asked, answered := make(chan message, 1), make(chan message, 1)
	r := connected(t, s.url(), func(c *Config) { c.on(Answer, func(e Event) { answered <- message{body: e.Text} }) })
	connected(t, s.url(), func(c *Config) {
		c.UUID = otherUUID
		c.on(Question, func(e Event) { asked <- message{e.From, e.Text} })
	})
	const body = "\x00 \r\n\xff ask answer "
	reached := make(chan bool, 1)
	r.Ask(otherUUID, []byte(body), func(is bool, err error) { reached <- is && err == nil })
	if got := recv(t, asked, "question"); got != (message{ourUUID, body}) {
		t.Errorf("the question is %+v", got)
	}
	if !recv(t, reached, "result") {
		t.Error("a sidecar that is connected is not reached")
	}
	r.Answer(ourUUID, []byte(body))
	if got := recv(t, answered, "answer"); got.body != body {
		t.Errorf("the answer is %q", got.body)
	}
	r.Ask("33333333-2222-3333-4444-555555555555", nil, func(is bool, err error) { reached <- is || err != nil })
	if recv(t, reached, "result") {
		t.Error("a sidecar that is not connected is reached")
	}
}

// Queries fail while there is no connection, and those in flight fail with it.
func TestQueriesFailWithTheConnection(t *testing.T) {
	s := startRedis(t)
	r := connected(t, s.url())
	s.suspend() // it does not answer
	found := make(chan foundHost, 1)
	r.Host(ourUUID, func(h lookup.Host, known bool, err error) { found <- foundHost{h, known, err} })
	s.cmd.Process.Kill()
	if got := recv(t, found, "failure"); got.err == nil {
		t.Errorf("found %+v without Redis", got)
	}
	if got := r.host(ourUUID); got.err == nil {
		t.Errorf("found %+v without Redis", got)
	}
}
