# Locks for scripts of sh, dash, bash and zsh; source this file. A script holds one lock at a time.
lock() { # lock [FLAGS] NAME: waits for the lock and sets LOCK_TOKEN; the flags are those of `locksidecar lock`
	# A descriptor that the script has not opened. bash and zsh choose one from 10; dash has 0 to 9 only.
	lock_redirect='{lock_fd}'
	if ! (eval "exec $lock_redirect>/dev/null") 2>/dev/null; then
		for lock_redirect in 7 6 5 4 8 9 3 none; do (eval ": >&$lock_redirect") 2>/dev/null || break; done
		[ $lock_redirect != none ] || { echo "lock: the descriptors 3 to 9 are open" >&2; return 69; }
	fi
	lock_dir=$(mktemp -d) && mkfifo "$lock_dir/in" "$lock_dir/out" || return
	# If the lock is lost, the script gets SIGTERM: it ends, or handles it (trap … TERM).
	(s=0; locksidecar lock "$@" || s=$?; [ $s != 79 ] || kill -TERM $$; exit $s) <"$lock_dir/in" >"$lock_dir/out" &
	LOCK_PID=$! && eval "exec $lock_redirect>"'"$lock_dir/in"'
	lock_status=0; read -r LOCK_TOKEN <"$lock_dir/out" || lock_status=1
	rm -r "$lock_dir"
	[ $lock_status = 0 ] || unlock # returns why there is no lock: 75 means that --wait has passed
}
unlock() { # returns 79 if the lock was lost before
	[ -z "${lock_redirect-}" ] || eval "exec $lock_redirect>&-" && lock_redirect='' && wait "$LOCK_PID"
}
