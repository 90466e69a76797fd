/*
 * Holds a lock until standard input has a line or ends, or the lock is lost.
 *
 *     cc -std=c11 -o example example.c locksidecar.c msgpack.c
 *     ./example NAME [WAIT_MS [LEASE_MS]]
 *
 * It ends with 0 if it released the lock, 75 if it did not get it in time, 79 if it lost it, and
 * 1 after any other error.
 */
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "locksidecar.h"

static struct ls_client client;

static int failed(const char *what)
{
	fprintf(stderr, "%s: %s (%s)\n", what, client.error, *client.code ? client.code : "no code");
	return strcmp(client.code, "timeout") == 0 ? 75 : 1;
}

/* Waits until input can be read (true) or the lock is lost (false). */
static bool hold_until_input(struct ls_hold *lock)
{
	while (ls_is_valid(&client, lock)) {
		struct pollfd fds[] = {{.fd = STDIN_FILENO, .events = POLLIN}, {.fd = client.fd, .events = POLLIN}};
		int64_t end = lock->deadline_ns < lock->end_ns ? lock->deadline_ns : lock->end_ns;
		int64_t left_ms = (end - ls_now()) / 1000000 + 1;
		poll(fds, 2, left_ms < 0 ? 0 : left_ms > 60000 ? 60000 : (int)left_ms);
		if (fds[0].revents)
			return true;
		if (fds[1].revents && !ls_handle_events(&client))
			fprintf(stderr, "%s; the lock is held until its deadline\n", client.error);
	}
	return false;
}

int main(int argc, char **argv)
{
	if (argc < 2 || argc > 4) {
		fprintf(stderr, "usage: %s NAME [WAIT_MS [LEASE_MS]]\n", argv[0]);
		return 64;
	}
	if (!ls_open(&client, NULL))
		return failed("cannot connect");
	struct ls_hold lock;
	if (!ls_acquire(&client, argv[1], argc > 2 ? atoll(argv[2]) : LS_FOREVER, argc > 3 ? atoll(argv[3]) : 0, &lock))
		return failed("not acquired");
	printf("token %llu\n", (unsigned long long)lock.token); /* a resource refuses smaller ones */
	fflush(stdout);

	int code = 0;
	if (!hold_until_input(&lock) || !ls_release(&client, &lock)) {
		fprintf(stderr, "lost: %s\n", *lock.lost ? lock.lost : client.error);
		code = 79;
	} else {
		puts("released");
	}
	ls_close(&client);
	return code;
}
