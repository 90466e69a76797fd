package main

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"os/signal"

	"golang.org/x/sys/unix"
)

// asPuppet makes the test binary a command that shows what happens to it. A
// shell's traps would not do: they may run late, or be lost while it forks.
const asPuppet = "LOCKSIDECAR_TEST_PUPPET"

// puppet shows the signals that it gets and the line that it reads, and ends
// with 3 after SIGTERM and 0 after a line. One that is called parent has a
// child, which ends first.
func puppet(who string) (code int) {
	show := func(what string) { fmt.Println(who, what) }
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, unix.SIGUSR1, unix.SIGHUP, unix.SIGTERM, unix.SIGCONT)
	if who == "parent" {
		child := exec.Command(os.Args[0])
		child.Env = append(os.Environ(), asPuppet+"=child")
		child.Stdout = os.Stdout
		// A pipe that stays open: the child ends by a signal.
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
		line, _ := bufio.NewReader(os.Stdin).ReadString('\n') // an error shows as an empty line
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
