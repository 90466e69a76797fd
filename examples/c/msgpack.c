#include "msgpack.h"

#include <string.h>

enum { MAX_DEPTH = 8 }; /* arrays and maps inside one another in an ignored field */

static const char *const names[F_FIELDS] = {
	[F_ID] = "id", [F_EV] = "ev", [F_ERR] = "err", [F_CODE] = "code", [F_MSG] = "msg",
	[F_V] = "v", [F_SIDECAR] = "sidecar", [F_VERSION] = "version", [F_SESSION] = "session",
	[F_LEASE_MS] = "lease_ms", [F_NOW_NS] = "now_ns", [F_TICKET] = "ticket", [F_RESUMED] = "resumed",
	[F_TOKEN] = "token", [F_HOLD] = "hold", [F_COUNT] = "count", [F_DEADLINE_NS] = "deadline_ns",
	[F_END_NS] = "end_ns", [F_REASON] = "reason",
};

/* ---- writing ---- */

static void put(struct mp_writer *w, unsigned first, uint64_t n, int bytes)
{
	*w->at++ = (unsigned char)first;
	while (bytes-- > 0)
		*w->at++ = (unsigned char)(n >> (8 * bytes));
}

void mp_write_map(struct mp_writer *w, unsigned fields) { put(w, 0x80 | fields, 0, 0); }

void mp_write_text(struct mp_writer *w, const char *text)
{
	size_t size = strlen(text);
	if (size < 32)
		put(w, 0xa0 | (unsigned)size, 0, 0);
	else
		put(w, 0xda, size, 2);
	memcpy(w->at, text, size);
	w->at += size;
}

void mp_write_number(struct mp_writer *w, uint64_t n)
{
	if (n < 128)
		put(w, (unsigned)n, 0, 0);
	else
		put(w, 0xcf, n, 8);
}

/* ---- reading ---- */

struct reader {
	const unsigned char *at, *end;
};

static bool read_bytes(struct reader *r, size_t n, const unsigned char **start)
{
	if ((size_t)(r->end - r->at) < n)
		return false;
	*start = r->at;
	r->at += n;
	return true;
}

static bool read_number(struct reader *r, int bytes, uint64_t *n)
{
	const unsigned char *b;
	if (!read_bytes(r, (size_t)bytes, &b))
		return false;
	*n = 0;
	for (int i = 0; i < bytes; i++)
		*n = *n << 8 | b[i];
	return true;
}

/* Reads the head of a value, and the whole value unless it is an array or a map. */
static bool read_value(struct reader *r, struct mp_value *v)
{
	const unsigned char *first;
	uint64_t n = 0;
	*v = (struct mp_value){.kind = MP_OTHER};
	if (!read_bytes(r, 1, &first))
		return false;
	unsigned c = *first;
	if (c <= 0x7f || c >= 0xe0) {
		v->kind = MP_INT;
		v->number = c;
		v->in_range = c <= 0x7f;
	} else if (c <= 0x8f) {
		v->kind = MP_MAP;
		v->size = c & 0x0f;
	} else if (c <= 0x9f) {
		v->kind = MP_ARRAY;
		v->size = c & 0x0f;
	} else if (c <= 0xbf) {
		v->kind = MP_TEXT;
		v->size = c & 0x1f;
	} else if (c == 0xc0) { /* nil */
	} else if (c == 0xc1) { /* not msgpack */
		return false;
	} else if (c <= 0xc3) {
		v->kind = MP_BOOL;
		v->number = c & 1;
	} else if (c <= 0xc6 || (c >= 0xc7 && c <= 0xc9)) { /* binary, extension with its type */
		bool is_extension = c >= 0xc7;
		if (!read_number(r, 1 << (c - (is_extension ? 0xc7 : 0xc4)), &n))
			return false;
		return read_bytes(r, (size_t)n + is_extension, &v->start);
	} else if (c <= 0xcb) { /* float */
		return read_bytes(r, c == 0xca ? 4 : 8, &v->start);
	} else if (c <= 0xd3) {
		int bytes = 1 << ((c - 0xcc) % 4);
		bool is_signed = c >= 0xd0;
		if (!read_number(r, bytes, &v->number))
			return false;
		v->kind = MP_INT;
		v->in_range = v->number >> (is_signed ? 8 * bytes - 1 : 63) == 0;
	} else if (c <= 0xd8) { /* extension of 1 to 16 bytes */
		return read_bytes(r, 1 + ((size_t)1 << (c - 0xd4)), &v->start);
	} else {
		static const struct {
			enum mp_kind kind;
			int bytes;
		} sized[] = {{MP_TEXT, 1}, {MP_TEXT, 2}, {MP_TEXT, 4}, {MP_ARRAY, 2}, {MP_ARRAY, 4}, {MP_MAP, 2}, {MP_MAP, 4}};
		v->kind = sized[c - 0xd9].kind;
		if (!read_number(r, sized[c - 0xd9].bytes, &n))
			return false;
		v->size = (uint32_t)n;
	}
	if (v->kind == MP_TEXT)
		return read_bytes(r, v->size, &v->start);
	v->start = r->at;
	return true;
}

/* Skips a value in which arrays and maps nest at most depth deep. */
static bool skip(struct reader *r, int depth, struct mp_value *v)
{
	struct mp_value element;
	if (!read_value(r, v))
		return false;
	if (v->kind != MP_ARRAY && v->kind != MP_MAP)
		return true;
	if (depth == 0)
		return false;
	uint64_t elements = v->kind == MP_MAP ? 2 * (uint64_t)v->size : v->size;
	for (uint64_t i = 0; i < elements; i++)
		if (!skip(r, depth - 1, &element))
			return false;
	return true;
}

static bool equal(const struct mp_value *a, const struct mp_value *b)
{
	return a->size == b->size && memcmp(a->start, b->start, a->size) == 0;
}

/* Returns whether one of the first n keys of a map is this one. */
static bool occurs(const struct mp_value *map, const unsigned char *end, uint32_t n, const struct mp_value *key)
{
	struct reader r = {map->start, end};
	struct mp_value other, value;
	for (uint32_t i = 0; i < n; i++)
		if (!read_value(&r, &other) || equal(&other, key) || !skip(&r, MAX_DEPTH + 1, &value))
			return true;
	return false;
}

static bool read_fields(struct reader *r, const struct mp_value *map, struct mp_value fields[F_FIELDS])
{
	memset(fields, 0, F_FIELDS * sizeof fields[0]);
	for (uint32_t n = 0; n < map->size; n++) {
		struct mp_value key, value;
		bool is_str32 = r->at < r->end && *r->at == 0xdb;
		if (!read_value(r, &key) || key.kind != MP_TEXT || is_str32 || !mp_is_utf8(key.start, key.size))
			return false;
		int f = 0;
		while (f < F_FIELDS && !(strlen(names[f]) == key.size && memcmp(names[f], key.start, key.size) == 0))
			f++;
		if (occurs(map, r->end, n, &key) || !skip(r, f == F_ERR ? MAX_DEPTH + 1 : MAX_DEPTH, &value))
			return false;
		if (f < F_FIELDS)
			fields[f] = value;
	}
	return true;
}

bool mp_read_body(const unsigned char *body, size_t size, struct mp_value fields[F_FIELDS])
{
	struct reader r = {body, body + size};
	struct mp_value map;
	return read_value(&r, &map) && map.kind == MP_MAP && read_fields(&r, &map, fields) && r.at == r.end;
}

bool mp_read_map(const struct mp_value *map, const unsigned char *end, struct mp_value fields[F_FIELDS])
{
	struct reader r = {map->start, end};
	return read_fields(&r, map, fields);
}

bool mp_is_utf8(const unsigned char *s, size_t size)
{
	const unsigned char *end = s + size;
	while (s < end) {
		unsigned c = *s++;
		int more = c < 0x80 ? 0 : c >= 0xc2 && c < 0xe0 ? 1 : c >= 0xe0 && c < 0xf0 ? 2 : c >= 0xf0 && c < 0xf5 ? 3 : -1;
		if (more < 0 || end - s < more)
			return false;
		/* Longer than needed, half of a surrogate pair, or above U+10FFFF. */
		if ((c == 0xe0 && *s < 0xa0) || (c == 0xed && *s > 0x9f) || (c == 0xf0 && *s < 0x90) || (c == 0xf4 && *s > 0x8f))
			return false;
		while (more-- > 0)
			if ((*s++ & 0xc0) != 0x80)
				return false;
	}
	return true;
}
