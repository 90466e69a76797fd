package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"

	"github.com/coreos/go-systemd/v22/activation"
)

// inheritedListener returns the socket that systemd passed to this process; nil: none.
func inheritedListener() (*net.UnixListener, error) {
	files := activation.Files(true)
	if len(files) == 0 {
		return nil, nil
	}
	defer func() {
		for _, f := range files {
			f.Close()
		}
	}()
	if len(files) > 1 {
		return nil, fmt.Errorf("systemd passes %d sockets; the socket unit must have one ListenStream=", len(files))
	}
	l, err := net.FileListener(files[0])
	if err != nil {
		return nil, fmt.Errorf("the descriptor that systemd passes is not a listening socket; check the socket unit: %w", err)
	}
	unix, ok := l.(*net.UnixListener)
	if !ok {
		l.Close()
		return nil, errors.New("the socket that systemd passes is not a Unix socket; ListenStream= must be a path")
	}
	if unix.Addr().Network() != "unix" {
		l.Close()
		return nil, errors.New("the socket that systemd passes keeps the borders of messages; the socket unit must have ListenStream=, not ListenSequentialPacket=")
	}
	return unix, nil
}

// socketOfMainProcess returns the address of the socket that systemd passed to the main
// process of this service. systemd passes it to ExecStart= only. For ExecReload= it sets
// $MAINPID, and a check that did not know of the socket would look at another path than the
// daemon uses. false: there is no such socket, or it cannot be found out.
func socketOfMainProcess() (address string, inherited bool) {
	pid, ok := mainProcess()
	if !ok {
		return "", false
	}
	environ, err := os.ReadFile("/proc/" + pid + "/environ")
	if err != nil {
		return "", false
	}
	vars := strings.Split(string(environ), "\x00")
	isActivated := slices.Contains(vars, "LISTEN_PID="+pid) && slices.Contains(vars, "LISTEN_FDS=1")
	if !isActivated {
		return "", false
	}
	return listeningSocket(pid)
}

// mainProcess returns the pid of the main process of this service, in a process that systemd
// has started for ExecReload=.
func mainProcess() (pid string, ok bool) {
	pid = os.Getenv("MAINPID")
	return pid, pid != "" && strings.Trim(pid, "0123456789") == ""
}

// listeningSocket returns the address of the Unix socket on which a process listens, if
// there is one address.
func listeningSocket(pid string) (address string, ok bool) {
	fds, err := os.ReadDir("/proc/" + pid + "/fd")
	if err != nil {
		return "", false
	}
	own := make(map[string]bool) // sockets of the process, by inode
	for _, fd := range fds {
		link, _ := os.Readlink("/proc/" + pid + "/fd/" + fd.Name()) // "": it was closed
		if inode, isSocket := strings.CutPrefix(link, "socket:["); isSocket {
			own[strings.TrimSuffix(inode, "]")] = true
		}
	}
	table, err := os.ReadFile("/proc/" + pid + "/net/unix")
	if err != nil {
		return "", false
	}
	lines := bufio.NewScanner(bytes.NewReader(table))
	for lines.Scan() {
		// Num RefCount Protocol Flags Type St Inode Path
		const listening = "00010000" // in Flags: __SO_ACCEPTCON
		f := strings.Fields(lines.Text())
		if len(f) < 8 || f[3] != listening || !own[f[6]] {
			continue
		}
		_, path, _ := strings.Cut(lines.Text(), " "+f[6]+" ") // it may contain spaces
		if ok && address != path {
			return "", false
		}
		address, ok = path, true
	}
	return address, ok
}
