package main

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"os/signal"

	"golang.org/x/sys/unix"
)

// signalProbeEnv makes the test binary a command that prints the signals that it receives. The
// traps of a shell may run late, or be lost while it forks.
const signalProbeEnv = "LOCKSIDECAR_TEST_PUPPET"

// signalProbe prints the signals that it receives and the line that it reads. It ends with 3
// after SIGTERM and with 0 after a line. The probe with the name "parent" has a child, which
// ends first.
func signalProbe(name string) (code int) {
	show := func(what string) { fmt.Println(name, what) }
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, unix.SIGUSR1, unix.SIGHUP, unix.SIGTERM, unix.SIGCONT)
	if name == "parent" {
		child := exec.Command(os.Args[0])
		child.Env = append(os.Environ(), signalProbeEnv+"=child")
		child.Stdout = os.Stdout
		// The pipe stays open, so that only a signal ends the child.
		if _, err := child.StdinPipe(); err != nil {
			show(err.Error())
			return 1
		}
		if err := child.Start(); err != nil {
			show(err.Error())
			return 1
		}
		defer child.Wait()
	}
	lines := make(chan string)
	go func() {
		line, _ := bufio.NewReader(os.Stdin).ReadString('\n') // an empty line: an error
		lines <- line
	}()
	show("up")
	for {
		select {
		case line := <-lines:
			show("got:" + line)
			return 0
		case sig := <-signals:
			switch sig {
			case unix.SIGUSR1:
				show("USR1")
			case unix.SIGHUP:
				show("HUP")
			case unix.SIGCONT:
				show("CONT")
			case unix.SIGTERM:
				show("TERM")
				return 3
			}
		}
	}
}
