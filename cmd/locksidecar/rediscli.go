package main

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/url"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/locksidecar/locksidecar/sidecar/redisurl"
)

// redisCLICmd runs redis-cli with the Redis of the daemon's settings, whatever kind of URL they have.
type redisCLICmd struct {
	Config   string `help:"Read settings from this TOML file, as serve does (default: $$LOCKSIDECAR_CONFIG, then /etc/locksidecar/locksidecar.toml if there is one)." placeholder:"FILE"`
	Node     string `help:"Connect to this server and no other one: a master of a Cluster, a replica, or a Sentinel of the URL." placeholder:"HOST:PORT"`
	Print    bool   `help:"Print the command without its password, and do not run it."`
	defaults string // before the paths of the packages: for tests

	Args []string `arg:"" optional:"" passthrough:"" placeholder:"COMMAND" help:"A command for Redis, such as info memory. Without one, redis-cli asks for commands. Options of redis-cli come after --."`
}

func (redisCLICmd) Help() string {
	return `Runs redis-cli with the Redis of the daemon's settings: its address, user, database and certificates. Behind
Sentinels it connects to the master that they name, and in a Cluster to a node that answers, with -c. The password goes
by $REDISCLI_AUTH, so that no other user sees it.

Settings are those that serve would take: variables, the systemd credential redis-url, the settings file, or the default.
Run it as root, or as the daemon's user, so that they can be read. The user of Redis is the daemon's, which may not
change Redis: config set, acl log and --cluster fix are for an administrator of Redis.

Examples:

    locksidecar redis-cli info memory
    locksidecar redis-cli --node 10.0.0.7:6379 role
    locksidecar redis-cli -- --latency
    locksidecar redis-cli --print

The exit code is that of redis-cli, or:

    64   wrong usage, or settings that cannot be read
    69   no Sentinel or no node answers
    127  redis-cli is not installed`
}

// The settings file of the packages, and the credentials of their unit.
const (
	defaultConfig      = "/etc/locksidecar/locksidecar.toml"
	serviceCredentials = "/run/credentials/locksidecar.service"
)

func (c *redisCLICmd) Run(ctx context.Context, out io.Writer) error {
	args, password, err := c.command(ctx)
	if err != nil {
		return err
	}
	if c.Print {
		text := quoteAll(args)
		if password != "" {
			text = "REDISCLI_AUTH=… " + text
		}
		_, err := fmt.Fprintln(out, text)
		return err
	}
	path, err := exec.LookPath("redis-cli")
	if err != nil {
		printErr("redis-cli is not installed: apt install redis-tools, or on Fedora dnf install redis; --print shows the command for another host")
		return exitStatus(exitNotFound)
	}
	env := os.Environ()
	if password != "" {
		env = append(env, "REDISCLI_AUTH="+password)
	}
	return fmt.Errorf("redis-cli cannot be executed: %w", syscall.Exec(path, args, env))
}

// quoteAll returns a command line for a shell.
func quoteAll(args []string) string {
	quoted := make([]string, len(args))
	for i, a := range args {
		quoted[i] = quoteForShell(a)
	}
	return strings.Join(quoted, " ")
}

// command returns the command line of redis-cli, and the password.
func (c *redisCLICmd) command(ctx context.Context) (args []string, password string, err error) {
	s, target, err := c.settings()
	if err != nil {
		return nil, "", coded{exitUsage, err}
	}
	if target.embedded {
		return nil, "", coded{exitUsage, errors.New("the daemon has a Redis of its own (embedded), which redis-cli does not reach; locksidecar ls and who show its locks")}
	}
	u, err := redisurl.Parse(target.url)
	if err != nil {
		return nil, "", coded{exitUsage, err}
	}
	args = []string{"redis-cli"}
	if u.Sentinel != nil && slices.Contains(u.Sentinel.Addresses, c.Node) {
		u.Server = sentinelURL(u.Sentinel, c.Node)
	}
	options := u.Server.Query()
	address := c.Node
	switch {
	case address != "":
	case u.Server.Scheme == "unix":
		args = append(args, "-s", u.Server.Path)
	case u.Sentinel != nil:
		address, err = masterOf(ctx, u.Sentinel, s.RedisCA)
	case u.Nodes != nil:
		address, err = answering(ctx, u.Nodes)
	default:
		address = u.Server.Host
	}
	if err != nil {
		return nil, "", err
	}
	if address != "" {
		host, port, err := net.SplitHostPort(address)
		if err != nil {
			host, port = strings.Trim(address, "[]"), "6379"
		}
		args = append(args, "-h", host, "-p", port)
	}
	if u.Nodes != nil && c.Node == "" {
		args = append(args, "-c")
	}
	database := options.Get("db")
	if u.Server.Scheme != "unix" && u.Database() != "" {
		database = u.Database()
	}
	if database != "" && database != "0" {
		args = append(args, "-n", database)
	}
	user := options.Get("username")
	password, has := u.Server.User.Password()
	if name := u.Server.User.Username(); name != "" {
		user = name
	}
	if !has {
		password = options.Get("password")
	}
	if user != "" {
		args = append(args, "--user", user)
	}
	if u.Server.Scheme == "rediss" {
		args = append(args, "--tls")
		for _, file := range []struct{ flag, value string }{{"--cacert", s.RedisCA}, {"--cert", s.RedisCert}, {"--key", s.RedisKey}, {"--sni", s.RedisServerName}} {
			if file.value != "" {
				args = append(args, file.flag, file.value)
			}
		}
		if options.Get("skip_verify") == "true" {
			args = append(args, "--insecure")
		}
	}
	rest := c.Args
	if len(rest) > 0 && rest[0] == "--" {
		rest = rest[1:]
	}
	return append(args, rest...), password, nil
}

// settings returns what the settings say of Redis.
func (c *redisCLICmd) settings() (*settings, redisTarget, error) {
	path := c.Config
	if path == "" {
		path = os.Getenv("LOCKSIDECAR_CONFIG")
	}
	if path == "" {
		if _, err := os.Stat(c.defaults + defaultConfig); !errors.Is(err, fs.ErrNotExist) {
			path = c.defaults + defaultConfig // a file that cannot be read is an error, and not another Redis
		}
	}
	if directory := c.defaults + serviceCredentials; os.Getenv("CREDENTIALS_DIRECTORY") == "" {
		if _, err := os.Stat(directory); err == nil {
			os.Setenv("CREDENTIALS_DIRECTORY", directory)
		}
	}
	r, err := newSettingsResolver(path)
	if err != nil {
		return nil, redisTarget{}, err
	}
	s := &settings{
		Redis: r.text("redis"), RedisFile: r.text("redis_file"), Embedded: r.text("embedded") == "true",
		RedisCA: r.text("redis_ca"), RedisCert: r.text("redis_cert"), RedisKey: r.text("redis_key"), RedisServerName: r.text("redis_server_name"),
	}
	target, err := chooseRedis(s, r)
	if err != nil {
		return nil, redisTarget{}, fmt.Errorf("%w; run this as root, or as the daemon's user", err)
	}
	if target.key == "" {
		printErr("no setting names a Redis: this is the default, %s", target.shown)
	}
	for name, file := range map[string]*string{"redis-ca": &s.RedisCA, "redis-cert": &s.RedisCert, "redis-key": &s.RedisKey} {
		if *file == "" && err == nil {
			*file, err = credential(name)
		}
	}
	return s, target, err
}

// text returns a setting that no flag sets, and notes its origin.
func (r *settingsResolver) text(key string) string {
	if v := os.Getenv(settingEnv(key)); v != "" {
		r.origins[key] = fromEnv
		return v
	}
	if v, has := r.file[key]; has {
		r.origins[key] = fromFile
		return v
	}
	return ""
}

// probeTimeout is how long one Sentinel, or one node, is waited for.
const probeTimeout = 2 * time.Second

// masterOf returns the address of the master, as the first Sentinel names it that answers.
func masterOf(ctx context.Context, s *redisurl.Sentinel, ca string) (_ string, err error) {
	redis.SetLogger(noLog{}) // the errors have what it would log
	var failed error
	for _, address := range s.Addresses {
		options := &redis.Options{Addr: address, Username: s.Username, Password: s.Password, DialTimeout: probeTimeout, ReadTimeout: probeTimeout, MaxRetries: -1, DialerRetries: 1}
		if s.TLS {
			if options.TLSConfig, err = trust(ca); err != nil {
				return "", coded{exitUsage, err}
			}
		}
		client := redis.NewSentinelClient(options)
		at, err := client.GetMasterAddrByName(ctx, s.Master).Result()
		client.Close()
		if err == nil && len(at) == 2 {
			return net.JoinHostPort(at[0], at[1]), nil
		}
		failed = errors.Join(failed, fmt.Errorf("the Sentinel at %s: %w", address, cmp.Or(err, errors.New("it names no address"))))
	}
	return "", coded{exitUnavailable, fmt.Errorf("no Sentinel names the master %q; --node HOST:PORT connects to a server that you know\n%w", s.Master, failed)}
}

// sentinelURL is the URL of one Sentinel, which has a user and a password of its own.
func sentinelURL(s *redisurl.Sentinel, address string) url.URL {
	u := url.URL{Scheme: "redis", Host: address, User: url.UserPassword(s.Username, s.Password)}
	if s.TLS {
		u.Scheme = "rediss"
	}
	return u
}

// noLog is a logger of the Redis library that logs nothing.
type noLog struct{}

func (noLog) Printf(context.Context, string, ...any) {}

// trust returns how the certificate of a Sentinel is verified. ca is a file; "": the authorities of the host.
func trust(ca string) (*tls.Config, error) {
	c := &tls.Config{MinVersion: tls.VersionTLS12}
	if ca == "" {
		return c, nil
	}
	text, err := os.ReadFile(ca)
	if err != nil {
		return nil, err
	}
	if c.RootCAs = x509.NewCertPool(); !c.RootCAs.AppendCertsFromPEM(text) {
		return nil, fmt.Errorf("%s has no certificate in PEM", ca)
	}
	return c, nil
}

// answering returns the first node to which a connection can be made.
func answering(ctx context.Context, nodes []string) (string, error) {
	var failed error
	d := net.Dialer{Timeout: probeTimeout}
	for _, address := range nodes {
		conn, err := d.DialContext(ctx, "tcp", address)
		if err == nil {
			conn.Close()
			return address, nil
		}
		failed = errors.Join(failed, err)
	}
	return "", coded{exitUnavailable, fmt.Errorf("no node of the Cluster answers that the URL names; --node HOST:PORT connects to another one\n%w", failed)}
}
