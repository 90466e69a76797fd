# Locks for scripts of sh, dash and bash; source this file. A script holds one lock at a time.
lock() { # lock [FLAGS] NAME: waits for the lock and sets LOCK_TOKEN; the flags are those of `locksidecar lock`
	lock_dir=$(mktemp -d) && mkfifo "$lock_dir/in" "$lock_dir/out" || return
	# If the lock is lost, the script gets SIGTERM: it ends, or handles it (trap … TERM).
	(s=0; locksidecar lock "$@" || s=$?; [ $s != 79 ] || kill -TERM $$; exit $s) <"$lock_dir/in" >"$lock_dir/out" &
	LOCK_PID=$! && exec 8>"$lock_dir/in" 9<"$lock_dir/out"
	rm -r "$lock_dir"
	read -r LOCK_TOKEN <&9 || unlock # returns why there is no lock: 75 means that --wait has passed
}
unlock() { # returns 79 if the lock was lost before
	exec 8>&- 9<&- && wait "$LOCK_PID"
}
