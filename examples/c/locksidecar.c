#define _GNU_SOURCE
#include "locksidecar.h"

#include <errno.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "msgpack.h"

enum { PROTOCOL_VERSION = 1, MAX_NAME = 512, MAX_TICKET = 128 };

/* A message from the sidecar. Its fields point into c->frame until the next one is read. */
struct message {
	uint64_t id; /* 0: none */
	bool is_event, is_error;
	struct mp_value fields[F_FIELDS];
};

int64_t ls_now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_BOOTTIME, &t);
	return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* Sets the error, and returns false. */
__attribute__((format(printf, 3, 4)))
static bool fail(struct ls_client *c, const char *code, const char *format, ...)
{
	va_list args;
	va_start(args, format);
	vsnprintf(c->error, sizeof c->error, format, args);
	va_end(args);
	snprintf(c->code, sizeof c->code, "%s", code);
	return false;
}

/* Ends the connection. Holds stay valid until their deadlines. */
static bool disconnect(struct ls_client *c, const char *why)
{
	if (c->fd >= 0)
		close(c->fd);
	c->fd = -1;
	return fail(c, "unavailable", "the connection to the sidecar has ended: %s", why);
}

static bool is_usable(struct ls_client *c)
{
	if (c->pid != getpid())
		return fail(c, "", "this client belongs to the process that opened it; a child opens its own");
	return c->fd >= 0 || fail(c, "unavailable", "the connection to the sidecar has ended");
}

/* ---- frames ---- */

/* Begins a request in buf; its map has so many fields. */
static struct mp_writer begin(unsigned char *buf, unsigned fields, const char *op)
{
	struct mp_writer w = {buf + 4};
	mp_write_map(&w, fields);
	mp_write_text(&w, "op");
	mp_write_text(&w, op);
	return w;
}

static void write_field(struct mp_writer *w, const char *key, uint64_t n)
{
	mp_write_text(w, key);
	mp_write_number(w, n);
}

/* Sends a request. If that fails, the next read finds out why: the sidecar may have sent an error
 * before it closed the connection. */
static bool send_frame(struct ls_client *c, unsigned char *buf, const struct mp_writer *w)
{
	size_t size = (size_t)(w->at - buf), body = size - 4;
	for (int i = 0; i < 4; i++)
		buf[i] = (unsigned char)(body >> (8 * (3 - i)));
	for (size_t sent = 0; sent < size;) {
		ssize_t n = send(c->fd, buf + sent, size - sent, MSG_NOSIGNAL);
		if (n < 0 && errno != EINTR)
			return fail(c, "unavailable", "cannot send to the sidecar: %s", strerror(errno));
		sent += n > 0 ? (size_t)n : 0;
	}
	return true;
}

static bool read_exactly(struct ls_client *c, unsigned char *buf, size_t size)
{
	while (size > 0) {
		ssize_t n = read(c->fd, buf, size);
		if (n == 0)
			return disconnect(c, "the sidecar has closed it");
		if (n < 0 && errno != EINTR)
			return disconnect(c, strerror(errno));
		buf += n > 0 ? n : 0;
		size -= n > 0 ? (size_t)n : 0;
	}
	return true;
}

/* Whether a field is an integer up to max. */
static bool is_number(const struct message *m, enum mp_field f, uint64_t max)
{
	return m->fields[f].kind == MP_INT && m->fields[f].in_range && m->fields[f].number <= max;
}

static bool is_text(const struct message *m, enum mp_field f, size_t max)
{
	const struct mp_value *v = &m->fields[f];
	return v->kind == MP_TEXT && v->size <= max && mp_is_utf8(v->start, v->size);
}

static bool is_absent(const struct message *m, enum mp_field f) { return m->fields[f].kind == MP_ABSENT; }

static uint64_t number(const struct message *m, enum mp_field f) { return m->fields[f].number; }

static void copy_text(char *to, size_t size, const struct mp_value *v)
{
	snprintf(to, size, "%.*s", v->kind == MP_TEXT ? (int)v->size : 0, v->kind == MP_TEXT ? (const char *)v->start : "");
}

/* Reads the next frame, which may take until the sidecar sends one. A frame that breaks the
 * protocol ends the connection. */
static bool read_message(struct ls_client *c, struct message *m)
{
	unsigned char head[4];
	if (!read_exactly(c, head, sizeof head))
		return false;
	size_t size = (size_t)head[0] << 24 | (size_t)head[1] << 16 | (size_t)head[2] << 8 | head[3];
	if (size < 1 || size > LS_MAX_FRAME)
		return disconnect(c, "a frame has a length that is not allowed");
	if (!read_exactly(c, c->frame, size))
		return false;
	if (!mp_read_body(c->frame, size, m->fields))
		return disconnect(c, "a frame is not one msgpack map as the protocol has it");
	m->is_event = !is_absent(m, F_EV);
	m->is_error = !m->is_event && !is_absent(m, F_ERR);
	m->id = 0;
	bool is_sound = true;
	if (m->is_event) {
		is_sound = is_text(m, F_EV, LS_MAX_FRAME);
	} else {
		is_sound = is_absent(m, F_ID) ? m->is_error : is_number(m, F_ID, INT64_MAX) && number(m, F_ID) > 0;
		m->id = is_absent(m, F_ID) ? 0 : number(m, F_ID);
	}
	if (is_sound && m->is_error) {
		struct message e = {.id = m->id};
		is_sound = m->fields[F_ERR].kind == MP_MAP && mp_read_map(&m->fields[F_ERR], c->frame + size, e.fields) &&
			is_text(&e, F_CODE, LS_MAX_FRAME) && (is_absent(&e, F_MSG) || is_text(&e, F_MSG, LS_MAX_FRAME));
		m->fields[F_CODE] = e.fields[F_CODE];
		m->fields[F_MSG] = e.fields[F_MSG];
	}
	return is_sound || disconnect(c, "a frame lacks a field, or has a field of the wrong type");
}

/* ---- messages ---- */

static struct ls_hold **find(struct ls_client *c, uint64_t hold)
{
	struct ls_hold **at = &c->holds;
	while (*at && (*at)->number != hold)
		at = &(*at)->next;
	return at;
}

static void end_hold(struct ls_client *c, struct ls_hold *h, const char *lost)
{
	struct ls_hold **at = find(c, h->number);
	if (*at == h)
		*at = h->next;
	h->is_held = false;
	snprintf(h->lost, sizeof h->lost, "%s", lost);
}

static bool is_event(const struct message *m, const char *name)
{
	const struct mp_value *ev = &m->fields[F_EV];
	return m->is_event && ev->size == strlen(name) && memcmp(ev->start, name, ev->size) == 0;
}

/* Fails with the error in a message. */
static bool fail_with(struct ls_client *c, const struct message *m)
{
	char code[sizeof c->code], msg[sizeof c->error];
	copy_text(code, sizeof code, &m->fields[F_CODE]);
	copy_text(msg, sizeof msg, &m->fields[F_MSG]);
	return fail(c, code, "%s", msg);
}

/* Handles a message that is no answer to a request that waits. */
static bool handle(struct ls_client *c, const struct message *m)
{
	if (is_event(m, "lost")) {
		if (!is_number(m, F_HOLD, INT64_MAX) || !is_text(m, F_REASON, LS_MAX_FRAME))
			return disconnect(c, "an event lost lacks a field, or has a field of the wrong type");
		struct ls_hold *h = *find(c, number(m, F_HOLD));
		if (h) {
			char reason[sizeof h->lost];
			copy_text(reason, sizeof reason, &m->fields[F_REASON]);
			end_hold(c, h, reason);
		}
	} else if (is_event(m, "lease")) {
		if (!is_number(m, F_DEADLINE_NS, INT64_MAX))
			return disconnect(c, "an event lease lacks its deadline");
		int64_t deadline = (int64_t)number(m, F_DEADLINE_NS);
		for (struct ls_hold *h = c->holds; h; h = h->next)
			if (!h->is_fixed && h->deadline_ns < deadline)
				h->deadline_ns = deadline;
	} else if (m->is_error && m->id == 0) {
		disconnect(c, "connection error");
		return fail_with(c, m);
	}
	return true; /* other events, and answers that are not awaited, mean nothing here */
}

/* Waits for the answer to a request. An error is a failure, after which c->code is its code. */
static bool answer_to(struct ls_client *c, uint64_t id, struct message *m)
{
	for (;;) {
		if (!read_message(c, m))
			return false;
		if (!m->is_event && m->id == id)
			return m->is_error ? fail_with(c, m) : true;
		if (!handle(c, m))
			return false;
	}
}

/* ---- what the header declares ---- */

bool ls_open(struct ls_client *c, const char *path)
{
	memset(c, 0, sizeof *c);
	c->fd = -1;
	c->pid = getpid();
	if (!path || !*path)
		path = getenv("LOCKSIDECAR_SOCKET");
	if (!path || !*path)
		path = "/run/locksidecar/locksidecar.sock";
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	if (strlen(path) >= sizeof address.sun_path)
		return fail(c, "", "%s is too long for the path of a socket", path);
	strcpy(address.sun_path, path);

	int64_t before = ls_now();
	c->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (c->fd < 0 || connect(c->fd, (struct sockaddr *)&address, sizeof address) != 0) {
		int why = errno;
		disconnect(c, "");
		return fail(c, "unavailable", "cannot connect to the sidecar at %s: %s", path, strerror(why));
	}
	unsigned char buf[128];
	struct mp_writer w = begin(buf, 4, "hello");
	write_field(&w, "id", c->last_id = 1);
	write_field(&w, "v", PROTOCOL_VERSION);
	mp_write_text(&w, "client");
	mp_write_text(&w, "c-example/1.0");
	struct message m;
	send_frame(c, buf, &w);
	if (!answer_to(c, 1, &m)) {
		if (c->fd >= 0)
			close(c->fd);
		c->fd = -1;
		return false;
	}
	if (!is_number(&m, F_V, INT64_MAX) || !is_text(&m, F_SIDECAR, LS_MAX_FRAME) || !is_text(&m, F_VERSION, LS_MAX_FRAME) ||
	    !is_number(&m, F_SESSION, INT64_MAX) || !is_number(&m, F_LEASE_MS, INT64_MAX) || !is_number(&m, F_NOW_NS, INT64_MAX) ||
	    (!is_absent(&m, F_TICKET) && !is_text(&m, F_TICKET, MAX_TICKET)) ||
	    (!is_absent(&m, F_RESUMED) && m.fields[F_RESUMED].kind != MP_BOOL))
		return disconnect(c, "the answer to hello lacks a field, or has a field of the wrong type");
	if (number(&m, F_V) != PROTOCOL_VERSION)
		return disconnect(c, "the sidecar speaks another version of the protocol");
	/* The deadlines below are of no use if the sidecar reads another clock. */
	int64_t its = (int64_t)number(&m, F_NOW_NS);
	if (its > ls_now() || its < before - 1000000000)
		return disconnect(c, "the sidecar has another CLOCK_BOOTTIME; run both in one time namespace");
	return true;
}

void ls_close(struct ls_client *c)
{
	/* First: another client may have the locks a moment after the connection has ended. */
	while (c->holds)
		end_hold(c, c->holds, "closed");
	if (c->fd >= 0)
		close(c->fd);
	c->fd = -1;
}

bool ls_acquire(struct ls_client *c, const char *name, int64_t wait_ms, int64_t lease_ms, struct ls_hold *h)
{
	memset(h, 0, sizeof *h);
	if (!is_usable(c))
		return false;
	if (strlen(name) > MAX_NAME)
		return fail(c, "bad_request", "the name of the lock has more than %d bytes", MAX_NAME);
	unsigned char buf[MAX_NAME + 128];
	unsigned fields = 3 + (wait_ms == LS_FOREVER ? 0u : 1u) + (lease_ms == 0 ? 0u : 1u);
	struct mp_writer w = begin(buf, fields, "acquire");
	uint64_t id = ++c->last_id;
	write_field(&w, "id", id);
	mp_write_text(&w, "name");
	mp_write_text(&w, name);
	if (wait_ms != LS_FOREVER)
		write_field(&w, "wait_ms", (uint64_t)wait_ms);
	if (lease_ms != 0)
		write_field(&w, "lease_ms", (uint64_t)lease_ms);
	struct message m;
	send_frame(c, buf, &w);
	if (!answer_to(c, id, &m))
		return false;
	if (!is_number(&m, F_TOKEN, INT64_MAX) || !is_number(&m, F_HOLD, INT64_MAX) || !is_number(&m, F_COUNT, UINT32_MAX) ||
	    !is_number(&m, F_DEADLINE_NS, INT64_MAX) || (!is_absent(&m, F_END_NS) && !is_number(&m, F_END_NS, INT64_MAX)))
		return disconnect(c, "the answer to acquire lacks a field, or has a field of the wrong type");
	*h = (struct ls_hold){
		.number = number(&m, F_HOLD),
		.token = number(&m, F_TOKEN),
		.deadline_ns = (int64_t)number(&m, F_DEADLINE_NS),
		.end_ns = is_absent(&m, F_END_NS) ? INT64_MAX : (int64_t)number(&m, F_END_NS),
		.is_fixed = lease_ms != 0,
		.is_held = true,
		.next = c->holds,
	};
	c->holds = h;
	return true;
}

/* Sends a release that is not answered. */
static bool send_release(struct ls_client *c, const struct ls_hold *h)
{
	unsigned char buf[64];
	struct mp_writer w = begin(buf, 2, "release");
	write_field(&w, "hold", h->number);
	return is_usable(c) && send_frame(c, buf, &w);
}

static int64_t end_of(const struct ls_hold *h) { return h->deadline_ns < h->end_ns ? h->deadline_ns : h->end_ns; }

bool ls_is_valid(struct ls_client *c, struct ls_hold *h)
{
	if (!h->is_held || c->pid != getpid())
		return false;
	int64_t now = ls_now();
	if (now < end_of(h))
		return true;
	/* This process may have been stopped while the sidecar renewed the lock: the event waits. */
	ls_handle_events(c);
	if (!h->is_held)
		return false;
	if (now < end_of(h))
		return ls_now() < end_of(h);
	end_hold(c, h, now >= h->end_ns ? "max_hold" : "expired");
	send_release(c, h); /* the sidecar may have renewed it after that */
	return false;
}

bool ls_release(struct ls_client *c, struct ls_hold *h)
{
	if (!ls_is_valid(c, h))
		return *h->lost ? fail(c, "", "the lock was lost: %s", h->lost) : fail(c, "not_held", "the lock is not held");
	end_hold(c, h, "");
	return send_release(c, h);
}

bool ls_handle_events(struct ls_client *c)
{
	struct message m;
	while (is_usable(c)) {
		struct pollfd p = {.fd = c->fd, .events = POLLIN};
		int n = poll(&p, 1, 0);
		if (n == 0 || (n < 0 && errno == EINTR))
			return true;
		if (n < 0)
			return disconnect(c, strerror(errno));
		if (!read_message(c, &m) || !handle(c, &m))
			return false;
	}
	return false;
}
