// Package redisurl reads the URL that names a Redis: one server, the master that Sentinels watch, or a
// Cluster.
package redisurl

import (
	"errors"
	"net"
	"net/url"
	"slices"
	"strings"
)

// Forms are the URLs that Parse accepts, for error messages.
const Forms = "redis://[user:password@]host[:port][/database], rediss://… for TLS, " +
	"redis+sentinel://[user:password@]sentinel[:port],…/master[/database], redis+cluster://[user:password@]node[:port],…, " +
	"or unix:///path/to/socket[?db=database]"

// A URL names a Redis.
type URL struct {
	// Server is the URL of one server, as go-redis reads it. With Sentinels, its host is to be
	// replaced by that of the master, and with a Cluster by that of a node.
	Server url.URL

	// Sentinel is who knows where the server is; nil: Server says it.
	Sentinel *Sentinel

	// Nodes are addresses of a Cluster, host:port, from which the others are learned; nil: Redis is none.
	Nodes []string
}

// Sentinel is a group of Sentinels, and the master that they watch.
type Sentinel struct {
	Master    string   // its name
	Addresses []string // host:port of each Sentinel that the URL has; at least one

	// Of the Sentinels. The user and the password before the @ are for Redis, as is the s of rediss.
	Username, Password string
	TLS                bool
}

// The options of a Sentinel URL that are not for Redis. sentinelMasterId is the form of Lettuce.
const (
	optionUsername = "sentinel_username"
	optionPassword = "sentinel_password"
	optionTLS      = "sentinel_tls"
	optionMaster   = "sentinelMasterId"
)

const (
	defaultSentinelPort = "26379"
	defaultPort         = "6379"

	// maxAddresses bounds the addresses of a URL.
	maxAddresses = 64
)

// schemes are those of a group of Sentinels, with that of the Redis that they watch.
var schemes = map[string]string{
	"redis+sentinel": "redis", "rediss+sentinel": "rediss",
	"redis-sentinel": "redis", "rediss-sentinel": "rediss", // as Lettuce writes them
}

// clusterSchemes are those of a Cluster, with that of its nodes.
var clusterSchemes = map[string]string{"redis+cluster": "redis", "rediss+cluster": "rediss"}

// publicOptions are those of go-redis that are no secret. All others are not shown: one may be a part of
// a password that was not encoded.
var publicOptions = []string{
	"client_name", "conn_max_idle_time", "conn_max_lifetime", "db", "dial_timeout", "idle_timeout", "max_active_conns", "max_conn_age",
	"max_idle_conns", "max_retries", "max_retry_backoff", "min_idle_conns", "min_retry_backoff", "pool_fifo", "pool_size", "pool_timeout",
	"protocol", "read_timeout", "skip_verify", "username", "write_timeout",
}

// unreadable is the error for a text that is no URL. It names the part that is wrong, and does not repeat it: it
// may be of a password.
func unreadable(err error) error {
	what := "it is no URL"
	for found, part := range map[string]string{
		"invalid port":                "the port is not a number",
		"invalid URL escape":          "a % is not followed by two hexadecimal digits",
		"invalid userinfo":            "the user or the password has a character that must be percent-encoded",
		"missing protocol scheme":     "it has no redis:// at its beginning",
		"first path segment":          "it has no redis:// at its beginning",
		"in host name":                "the host has a character that hosts do not have",
		"missing ']'":                 "the IPv6 address has no ] at its end",
		"invalid control character":   "it has a control character, such as a line break at its end",
		"invalid semicolon separator": "its options are separated by ; and not by &",
	} {
		if strings.Contains(err.Error(), found) {
			what = part
		}
	}
	return errors.New("the Redis URL cannot be read: " + what + "; want " + Forms +
		"; characters like / : @ # & in a password must be percent-encoded")
}

// Parse reads a URL. Its errors never repeat a part that may be a password.
func Parse(raw string) (*URL, error) {
	if raw == "" {
		return nil, errors.New("no Redis URL: want " + Forms)
	}
	scheme, _, _ := strings.Cut(raw, "://")
	server, isSentinel := schemes[scheme]
	if isSentinel {
		return parseSentinel(server, strings.TrimPrefix(raw, scheme+"://"), strings.HasSuffix(scheme, "-sentinel"))
	}
	if server, isCluster := clusterSchemes[scheme]; isCluster {
		return parseCluster(server, strings.TrimPrefix(raw, scheme+"://"))
	}
	u, err := url.Parse(raw)
	if err != nil {
		return nil, unreadable(err)
	}
	switch {
	case u.Scheme == "", u.Opaque != "": // what is before a colon may be of a password
		return nil, errors.New("the Redis URL has no redis:// at its beginning: want " + Forms)
	case u.Scheme == "unix" && u.Path == "":
		return nil, errors.New("the Redis URL names no socket path: want " + Forms)
	case u.Scheme == "unix" && u.Hostname() != "" && u.User == nil:
		return nil, errors.New("the Redis URL has unix:// with two slashes before the path of the socket, and not three: want " + Forms)
	case u.Scheme == "redis", u.Scheme == "rediss", u.Scheme == "unix":
		return &URL{Server: *u}, nil
	}
	return nil, errors.New("the Redis URL begins with \"" + u.Scheme + "\": want " + Forms)
}

// splitAddresses splits what follows the scheme of a URL with several addresses: what is before them,
// with the @, the addresses, and what is behind them. role is what is at an address.
func splitAddresses(rest, role, port string) (user string, addresses []string, tail string, err error) {
	end := strings.IndexAny(rest, "/?#")
	if end < 0 {
		end = len(rest)
	}
	authority, tail := rest[:end], rest[end:]
	at := strings.LastIndexByte(authority, '@') + 1
	hosts := strings.Split(authority[at:], ",")
	if len(hosts) > maxAddresses {
		return "", nil, "", errors.New("the Redis URL names more than 64 " + role + "s; name three to five, from which the others are found")
	}
	for _, host := range hosts {
		address, ok := withPort(host, port)
		if !ok {
			return "", nil, "", errors.New("the Redis URL has a " + role + " without a host, or with a port that is not a number: want " + Forms)
		}
		if !slices.Contains(addresses, address) {
			addresses = append(addresses, address)
		}
	}
	return authority[:at], addresses, tail, nil
}

// parseCluster reads what follows the scheme of a URL of a Cluster.
func parseCluster(scheme, rest string) (*URL, error) {
	user, nodes, tail, err := splitAddresses(rest, "node", defaultPort)
	if err != nil {
		return nil, err
	}
	u, err := url.Parse(scheme + "://" + user + nodes[0] + tail)
	if err != nil {
		return nil, unreadable(err)
	}
	if db := strings.Trim(u.Path, "/") + strings.TrimPrefix(u.Query().Get("db"), "0"); db != "" && db != "0" {
		return nil, errors.New("the Redis URL names a database, and a Cluster has database 0 only: want redis+cluster://[user:password@]node[:port],…")
	}
	u.Path = ""
	return &URL{Server: *u, Nodes: nodes}, nil
}

// parseSentinel reads what follows the scheme of a URL of Sentinels. The package net/url accepts one
// host, so it gets the first one only. isLettuce: what is before the @, without a colon, is a password.
func parseSentinel(scheme, rest string, isLettuce bool) (*URL, error) {
	user, addresses, tail, err := splitAddresses(rest, "Sentinel", defaultSentinelPort)
	if err != nil {
		return nil, err
	}
	if isLettuce && user != "" && !strings.Contains(user, ":") {
		user = ":" + user
	}
	s := &Sentinel{Addresses: addresses}
	u, err := url.Parse(scheme + "://" + user + s.Addresses[0] + tail)
	if err != nil {
		return nil, unreadable(err)
	}
	// A plus in a password is one, and no space.
	options, err := url.ParseQuery(strings.ReplaceAll(u.RawQuery, "+", "%2B"))
	if err != nil {
		return nil, unreadable(err)
	}
	path := strings.Split(strings.TrimSuffix(strings.TrimPrefix(u.Path, "/"), "/"), "/")
	if options.Has(optionMaster) {
		s.Master = options.Get(optionMaster)
	} else {
		s.Master, path = path[0], path[1:]
	}
	wrong := ""
	switch {
	case s.Master == "":
		wrong = "names no master behind the Sentinels"
	case strings.ContainsAny(s.Master, " \t\r\n@:"):
		wrong = "names a master with a space, @ or :"
	case len(path) > 1:
		wrong = "has more than a master and a database behind the Sentinels"
	}
	if wrong != "" {
		return nil, errors.New("the Redis URL " + wrong +
			": want redis+sentinel://[user:password@]sentinel[:port],…/master[/database]; characters like / : @ # & in a password must be percent-encoded")
	}
	s.Username, s.Password = options.Get(optionUsername), options.Get(optionPassword)
	switch options.Get(optionTLS) {
	case "", "false":
	case "true":
		s.TLS = true
	default:
		return nil, errors.New("the Redis URL has another sentinel_tls than true and false")
	}
	for _, key := range []string{optionMaster, optionUsername, optionPassword, optionTLS} {
		options.Del(key)
	}
	u.Path, u.RawPath, u.RawQuery = "/"+strings.Join(path, ""), "", options.Encode()
	return &URL{Server: *u, Sentinel: s}, nil
}

// withPort returns an address with a port, if it has none.
func withPort(host, defaultPort string) (address string, ok bool) {
	u, err := url.Parse("redis://" + host)
	if err != nil || u.Host != host || u.Hostname() == "" || strings.ContainsAny(host, "@% \t\r\n") {
		return "", false
	}
	port := u.Port()
	if port == "" {
		port = defaultPort
	}
	return net.JoinHostPort(u.Hostname(), port), true
}

// Database is the number of the database as the URL has it; "": it names none.
func (u *URL) Database() string { return strings.Trim(u.Server.Path, "/") }

// HasPassword reports whether the URL has a password, of Redis or of the Sentinels.
func (u *URL) HasPassword() bool {
	_, has := u.Server.User.Password()
	return has || u.hasPasswordOption()
}

// hasPasswordOption reports whether a password is among the options.
func (u *URL) hasPasswordOption() bool {
	return u.Server.Query().Has("password") || u.Sentinel != nil && u.Sentinel.Password != ""
}

// MayQuoteOptions reports whether the options and the path can be shown in an error: no part of them can be of a
// password that was not percent-encoded. Such a part has the @ behind the password in it, or is of an option.
func (u *URL) MayQuoteOptions() bool {
	rest := u.Server.Path + u.Server.Fragment
	for key, values := range u.Server.Query() {
		rest += key + strings.Join(values, "")
	}
	return !u.hasPasswordOption() && !strings.Contains(rest, "@")
}

// Public returns the URL without passwords; without users, too, if isAnyUser. What cannot be parsed is
// left out.
func (u *URL) Public(isAnyUser bool) string {
	shown := u.Server
	if name := shown.User.Username(); name == "" || isAnyUser {
		shown.User = nil
	} else {
		shown.User = url.User(name)
	}
	q := shown.Query()
	for key := range q {
		if !slices.Contains(publicOptions, key) || isAnyUser && key == "username" {
			q.Del(key)
		}
	}
	if s := u.Sentinel; s != nil {
		shown.Scheme += "+sentinel"
		shown.Host = strings.Join(s.Addresses, ",")
		shown.Path = strings.TrimSuffix("/"+s.Master+shown.Path, "/")
		if s.Username != "" && !isAnyUser {
			q.Set(optionUsername, s.Username)
		}
		if s.TLS {
			q.Set(optionTLS, "true")
		}
	}
	if u.Nodes != nil {
		shown.Scheme += "+cluster"
		shown.Host = strings.Join(u.Nodes, ",")
	}
	shown.RawQuery = q.Encode()
	return shown.String()
}

// String is the URL without its passwords and options.
func (u *URL) String() string {
	public := *u
	public.Server.RawQuery = ""
	if u.Sentinel != nil {
		s := *u.Sentinel
		s.Username, s.TLS = "", false
		public.Sentinel = &s
	}
	return public.Public(false)
}
