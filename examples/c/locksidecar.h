/*
 * A minimal client of locksidecar in C: the smallest correct client of protocol/SPEC.md §9.1.
 *
 * It needs Linux and a C11 compiler. Compile locksidecar.c and msgpack.c with your program. One
 * thread uses a client; a child after fork must not.
 */
#ifndef LOCKSIDECAR_H
#define LOCKSIDECAR_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#define LS_FOREVER (-1)
#define LS_MAX_FRAME 65536

/* A lock that was acquired. The memory is the caller's, and must stay until ls_release or
 * ls_close. Read token, and what else you like; write nothing. */
struct ls_hold {
	uint64_t number;
	uint64_t token;      /* the fencing token: larger for every later hold of the lock */
	int64_t deadline_ns; /* until when the lock is held, in CLOCK_BOOTTIME; renewals move it */
	int64_t end_ns;      /* end of max_hold_ms; INT64_MAX: none */
	bool is_fixed;       /* it has a lease of its own, and no renewal moves its deadline */
	bool is_held;        /* neither released nor lost, as far as the client has read */
	char lost[32];       /* why it was lost; "": it was not */
	struct ls_hold *next;
};

/* A connection to the sidecar, and the session on it. */
struct ls_client {
	int fd; /* -1: the connection has ended; poll it for POLLIN, then call ls_handle_events */
	pid_t pid;
	uint64_t last_id;
	struct ls_hold *holds;

	char code[32];    /* of the last error: a code of SPEC.md §6.1, or "" */
	char error[1200]; /* the last error, for people */

	unsigned char frame[LS_MAX_FRAME];
};

/* Connects and sends hello. path NULL: $LOCKSIDECAR_SOCKET, or the default. */
bool ls_open(struct ls_client *c, const char *path);

/* Gives up all locks and ends the session. */
void ls_close(struct ls_client *c);

/* Acquires a lock. It waits for others for at most wait_ms; 0: it tries once. lease_ms 0: the
 * sidecar renews the lock. If it returns false, code is "timeout", "unavailable", ... */
bool ls_acquire(struct ls_client *c, const char *name, int64_t wait_ms, int64_t lease_ms, struct ls_hold *h);

/* Returns whether the lock is held now. Call it again before each step that needs the lock. If
 * it returns false, h->lost has the reason. */
bool ls_is_valid(struct ls_client *c, struct ls_hold *h);

/* Releases the lock. False: it was lost before (h->lost), was released before, or the connection
 * has ended; then the lock is free when its session or its lease has ended. */
bool ls_release(struct ls_client *c, struct ls_hold *h);

/* Reads the events that have arrived, and does not wait. False: the connection has ended. Holds
 * stay valid until their deadlines, but are not renewed any more. */
bool ls_handle_events(struct ls_client *c);

/* Reads CLOCK_BOOTTIME in ns, the clock of every deadline. */
int64_t ls_now(void);

#endif
