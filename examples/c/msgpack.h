/* As much msgpack as a client of locksidecar needs: protocol/SPEC.md §2. */
#ifndef MSGPACK_H
#define MSGPACK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The bytes of a message that is written. It must be large enough. */
struct mp_writer {
	unsigned char *at;
};

void mp_write_map(struct mp_writer *w, unsigned fields); /* at most 15 */
void mp_write_text(struct mp_writer *w, const char *text);
void mp_write_number(struct mp_writer *w, uint64_t n);

/* The fields of the messages that the client reads. */
enum mp_field {
	F_ID, F_EV, F_ERR, F_CODE, F_MSG,
	F_V, F_SIDECAR, F_VERSION, F_SESSION, F_LEASE_MS, F_NOW_NS, F_TICKET, F_RESUMED,
	F_TOKEN, F_HOLD, F_COUNT, F_DEADLINE_NS, F_END_NS, F_REASON,
	F_FIELDS /* how many there are */
};

enum mp_kind { MP_ABSENT, MP_BOOL, MP_INT, MP_TEXT, MP_ARRAY, MP_MAP, MP_OTHER };

struct mp_value {
	enum mp_kind kind;
	uint64_t number;            /* MP_INT */
	bool in_range;              /* MP_INT: 0 to 2^63-1 */
	const unsigned char *start; /* MP_TEXT: its bytes; MP_MAP: its first key */
	uint32_t size;              /* MP_TEXT: bytes; MP_ARRAY: elements; MP_MAP: fields */
};

/* Reads the one map in a body, with the values of its known fields. False: it breaks §2. */
bool mp_read_body(const unsigned char *body, size_t size, struct mp_value fields[F_FIELDS]);

/* Reads a map inside of a body that mp_read_body has accepted. False: it breaks §2. */
bool mp_read_map(const struct mp_value *map, const unsigned char *end, struct mp_value fields[F_FIELDS]);

bool mp_is_utf8(const unsigned char *text, size_t size);

#endif
