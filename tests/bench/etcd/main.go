// Command etcd is a cluster of one etcd server, for the benchmark to compare with.
//
// It prints a JSON line when it can be asked, and ends when its standard input
// does: it never outlives the one who started it. All is as etcd has it by
// default. That includes an fsync for each write, so what it can do depends on
// where its data is; the line names that file system.
package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/url"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"go.etcd.io/etcd/server/v3/embed"
	"golang.org/x/sys/unix"
)

// A ready is the line that is printed.
type ready struct {
	Event      string `json:"event"` // "ready"
	Client     string `json:"client"`
	Dir        string `json:"dir"`
	Filesystem string `json:"filesystem"` // tmpfs: fsync costs nothing there
}

// patience is how long a server may take to elect itself.
const patience = 30 * time.Second

func main() {
	dir := flag.String("dir", "", "keep the data in `DIR` (default: a temporary directory, removed in the end)")
	flag.Parse()
	if err := serve(*dir); err != nil {
		fmt.Fprintln(os.Stderr, "etcd:", err)
		os.Exit(1)
	}
}

func serve(dir string) (err error) {
	if dir == "" {
		if dir, err = os.MkdirTemp("", "bench-etcd"); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	}
	asked := make(chan os.Signal, 1)
	signal.Notify(asked, syscall.SIGTERM, syscall.SIGINT)
	deserted := make(chan struct{})
	go func() {
		io.Copy(io.Discard, os.Stdin)
		close(deserted)
	}()

	e, err := embed.StartEtcd(config(dir))
	if err != nil {
		return err
	}
	defer e.Close()
	select {
	case <-e.Server.ReadyNotify():
	case err := <-e.Err():
		return err
	case <-asked:
		return nil
	case <-deserted:
		return nil
	case <-time.After(patience):
		return fmt.Errorf("not ready within %v; its data is in %s", patience, dir)
	}
	fs, err := filesystem(dir)
	if err != nil {
		return err
	}
	line := ready{Event: "ready", Client: "http://" + e.Clients[0].Addr().String(), Dir: dir, Filesystem: fs}
	if err := json.NewEncoder(os.Stdout).Encode(line); err != nil {
		return err
	}
	select {
	case err := <-e.Err():
		return err
	case <-asked:
	case <-deserted:
	}
	return nil
}

// config differs from etcd's own in addresses, and in what is logged. A port 0 is
// one that is free. What ends the server is reported by serve; as an error etcd also
// logs each listener that is closed in the end.
func config(dir string) *embed.Config {
	free := []url.URL{{Scheme: "http", Host: "127.0.0.1:0"}}
	c := embed.NewConfig()
	c.Dir = filepath.Join(dir, "data")
	c.ListenClientUrls, c.AdvertiseClientUrls = free, free
	c.ListenPeerUrls, c.AdvertisePeerUrls = free, free
	c.InitialCluster = c.InitialClusterFromName(c.Name)
	c.LogLevel = "fatal"
	return c
}

// filesystem names the one that dir is on.
func filesystem(dir string) (string, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return "", &os.PathError{Op: "statfs", Path: dir, Err: err}
	}
	switch st.Type {
	case unix.TMPFS_MAGIC:
		return "tmpfs", nil
	case unix.EXT4_SUPER_MAGIC:
		return "ext2/3/4", nil
	case unix.XFS_SUPER_MAGIC:
		return "xfs", nil
	case unix.BTRFS_SUPER_MAGIC:
		return "btrfs", nil
	case unix.OVERLAYFS_SUPER_MAGIC:
		return "overlayfs", nil
	}
	return fmt.Sprintf("%#x", st.Type), nil
}
