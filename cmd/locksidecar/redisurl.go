package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"

	"github.com/locksidecar/locksidecar/sidecar"
	"github.com/locksidecar/locksidecar/sidecar/redisurl"
)

// redisTarget is which Redis to use: a URL, or a private one.
type redisTarget struct {
	url      string // secret: may contain a password
	shown    string // the same for people
	file     string // from which url was read; "": from none
	key      string // the setting that names it, or redisCredential; "": none, and it is the default
	embedded bool
}

// redisCredential is the redisTarget.key of the systemd credential, which is no setting.
const redisCredential = "credential"

// chooseRedis returns the Redis that the settings name. Several settings can name one: the
// setting with the highest origin counts. Two settings of the same origin are an error.
func chooseRedis(s *settings, r *settingsResolver) (redisTarget, error) {
	var named []string
	best := fromDefault
	consider := func(key string, o origin) {
		switch {
		case o > best:
			best, named = o, []string{key}
		case o == best && o != fromDefault:
			named = append(named, key)
		}
	}
	if s.Redis != "" {
		consider("redis", r.origins["redis"])
	}
	if s.RedisFile != "" {
		consider("redis_file", r.origins["redis_file"])
	}
	if s.Embedded {
		consider("embedded", r.origins["embedded"])
	}
	secret, err := credential(credentialName)
	if err == nil {
		err = checkCredentials([]string{credentialName, "redis-ca", "redis-cert", "redis-key"}, s.RedisFile, s.RedisCA, s.RedisCert, s.RedisKey)
	}
	if err == nil {
		err = checkVariables(os.Environ())
	}
	if err != nil {
		return redisTarget{}, err
	}
	if secret != "" {
		// The operator writes the unit, like the settings file.
		consider(redisCredential, fromFile)
	}
	if len(named) == 0 {
		return parseRedis(sidecar.DefaultRedis, "the default")
	}
	if len(named) > 1 {
		return redisTarget{}, fmt.Errorf("more than one Redis is named: by %s and by %s; keep one",
			whereRedis(named[0], r), whereRedis(named[1], r))
	}
	where := whereRedis(named[0], r)
	var t redisTarget
	switch named[0] {
	case "embedded":
		t.embedded = true
	case "redis_file":
		t, err = readRedis(s.RedisFile, where)
	case redisCredential:
		t, err = readRedis(secret, where)
	default:
		t, err = parseRedis(s.Redis, where)
		if err == nil && best == fromFlag && hasPassword(t.url) {
			return redisTarget{}, errors.New("--redis must not contain a password, because every user of this host can read command lines; " +
				"put the URL into a file and name it with --redis-file, or into $LOCKSIDECAR_REDIS")
		}
	}
	t.key = named[0]
	return t, err
}

func whereRedis(key string, r *settingsResolver) string {
	if key == redisCredential {
		return "the credential " + credentialName
	}
	return r.where(key)
}

func readRedis(path, where string) (redisTarget, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		var pathErr *fs.PathError
		errors.As(err, &pathErr)
		return redisTarget{}, fmt.Errorf("the Redis URL of %s cannot be read from %s: %w", where, path, pathErr.Err)
	}
	t, err := parseRedis(strings.TrimSpace(string(text)), where+" ("+path+")")
	t.file = path
	return t, err
}

// parseRedis returns an error for a text that is not a Redis URL. The error never quotes the
// text: if a password contains a slash, it is not certain where the password ends.
func parseRedis(raw, where string) (redisTarget, error) {
	u, err := redisurl.Parse(raw)
	if err != nil {
		return redisTarget{}, fmt.Errorf("%s: %w", where, err)
	}
	if u.Server.Opaque != "" || u.Server.Fragment != "" || strings.ContainsAny(raw, " \t\r\n") {
		return redisTarget{}, badRedis(where)
	}
	if u.Server.Scheme == "unix" {
		if u.Server.Host != "" || !strings.HasPrefix(u.Server.Path, "/") {
			return redisTarget{}, badRedis(where)
		}
	} else {
		if db := u.Database(); db != "" {
			if _, err := strconv.ParseUint(db, 10, 31); err != nil {
				return redisTarget{}, badRedis(where)
			}
		}
		if u.Server.Hostname() == "" {
			return redisTarget{}, badRedis(where)
		}
	}
	return redisTarget{url: raw, shown: u.String()}, nil
}

func badRedis(where string) error {
	return fmt.Errorf("the Redis URL of %s is not one; write redis://user:password@host:6379/0, rediss://… for TLS, "+
		"redis+sentinel://user:password@sentinel:26379,sentinel:26379/master/0, redis+cluster://user:password@node:6379,node:6379 or unix:///path/to/redis.sock, and percent-encode what is not a letter or a digit in the password", where)
}

func hasPassword(raw string) bool {
	u, err := redisurl.Parse(raw)
	return err != nil || u.HasPassword()
}
