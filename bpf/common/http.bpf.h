/* Finds `traceparent` in an HTTP/1.1 request, in whatever pieces a program reads the request.
 *
 * One character at a time, so that it does not matter where the pieces end; what is known so far is kept by the
 * caller. Functions that are not static are verified once, by themselves: states do not multiply with every
 * character.
 */
#ifndef OTEL_BRIDGE_HTTP_BPF_H
#define OTEL_BRIDGE_HTTP_BPF_H

#include "context.bpf.h"
#include "request.h"

enum {
	HTTP_CHUNK = 128, /* characters looked at in one go */
	HTTP_CHUNKS = 64, /* of one read */
	HTTP_MAX_HEADER = 16384, /* of one request; what lies behind is not looked at */
	HTTP_LEAST = 4, /* characters by which a request is told */
	TRACEPARENT_NAME = 12, /* length of "traceparent:" */
	TRACEPARENT_VALUE = 55, /* length of "00-<32 digits>-<16 digits>-<2 digits>" (W3C Trace Context) */
};

enum http_phase {
	HTTP_IDLE, /* nothing that could be a header */
	HTTP_REQUEST_LINE,
	HTTP_FIELDS,
};

/* Where in a field the next character stands: below AT_SPACE in its name, so far that of `traceparent`. */
enum http_position {
	AT_START = 0,
	AT_SPACE = TRACEPARENT_NAME,
	AT_VALUE,
	AT_END = AT_VALUE + TRACEPARENT_VALUE,
	AT_TRAILING_SPACE,
	AT_MORE, /* of a later version, which may have more parts */
	AT_TOO_MUCH,
	AT_OTHER, /* in another field */
};

struct http_chunk {
	__u8 characters[HTTP_CHUNK];
};

enum http_verdict {
	HTTP_GOES_ON,
	HTTP_TRACEPARENT, /* its value is whole */
	HTTP_ENDED, /* without one */
	HTTP_REFUSED, /* it has one whose form is wrong */
	HTTP_UNREADABLE,
};

/* Whether a read that begins so may be a request: GET, PUT, POST, HEAD, PATCH, DELETE, OPTIONS. */
static __always_inline bool begins_request(__u32 first)
{
#define FOUR(a, b, c, d) ((__u32)(d) << 24 | (__u32)(c) << 16 | (__u32)(b) << 8 | (__u32)(a))
	switch (first) {
	case FOUR('G', 'E', 'T', ' '):
	case FOUR('P', 'U', 'T', ' '):
	case FOUR('P', 'O', 'S', 'T'):
	case FOUR('H', 'E', 'A', 'D'):
	case FOUR('P', 'A', 'T', 'C'):
	case FOUR('D', 'E', 'L', 'E'):
	case FOUR('O', 'P', 'T', 'I'):
		return true;
	}
	return false;
#undef FOUR
}

static __always_inline __u8 in_lower_case(__u8 character)
{
	return character >= 'A' && character <= 'Z' ? character | 0x20 : character;
}

/* "traceparent:", as two words, since a program has no strings that the verifier lets it index. */
static __always_inline __u8 of_name(__u8 position)
{
	const __u64 beginning = 0x7261706563617274; /* "tracepar" */
	const __u64 rest = 0x3a746e65; /* "ent:" */

	return position < 8 ? beginning >> (8 * (position & 7)) : rest >> (8 * (position & 7));
}

static __always_inline enum http_verdict at_line_end(struct http_parser *parser)
{
	const __u64 protocol = 0x485454502f312e; /* "HTTP/1.", then comes a digit */
	__u8 position = parser->position;

	parser->position = AT_START;
	if (parser->phase == HTTP_REQUEST_LINE) {
		if ((parser->line_end >> 8 & 0xffffffffffffff) != protocol)
			return HTTP_ENDED;
		parser->phase = HTTP_FIELDS;
		parser->began = 1;
		return HTTP_GOES_ON;
	}
	if (position == AT_START)
		return HTTP_ENDED;
	if (position < AT_SPACE || position == AT_OTHER)
		return HTTP_GOES_ON;
	parser->position = position;
	return position >= AT_END && position <= AT_MORE ? HTTP_TRACEPARENT : HTTP_REFUSED;
}

static __always_inline enum http_position behind_value(__u8 position, __u8 character)
{
	if (position == AT_MORE || position == AT_TOO_MUCH)
		return position;
	if (character == ' ' || character == '\t')
		return AT_TRAILING_SPACE;
	return position == AT_END && character == '-' ? AT_MORE : AT_TOO_MUCH;
}

__noinline int http_character(struct http_parser *parser, __u8 character)
{
	__u8 position;

	if (!parser)
		return HTTP_ENDED;
	position = parser->position;
	if (character == '\n')
		return at_line_end(parser);
	if (character == '\r')
		return HTTP_GOES_ON;
	if (parser->phase == HTTP_REQUEST_LINE) {
		parser->line_end = parser->line_end << 8 | character;
		return HTTP_GOES_ON;
	}
	if (position < AT_SPACE) {
		parser->position = in_lower_case(character) == of_name(position) ? position + 1 : AT_OTHER;
		return HTTP_GOES_ON;
	}
	if (position == AT_SPACE) {
		if (character == ' ' || character == '\t')
			return HTTP_GOES_ON;
		position = AT_VALUE;
	}
	if (position < AT_END) {
		parser->value[(position - AT_VALUE) & (sizeof(parser->value) - 1)] = character;
		parser->position = position + 1;
	} else {
		parser->position = behind_value(position, character);
	}
	return HTTP_GOES_ON;
}

__noinline int http_scan(struct http_parser *parser, const struct http_chunk *chunk, __u32 length)
{
	if (!parser || !chunk)
		return HTTP_ENDED;
	for (__u32 i = 0; i < HTTP_CHUNK && i < length; i++) {
		__u8 character = chunk->characters[i];
		int verdict;

		/* Most of a header are other fields. */
		if (parser->position == AT_OTHER && character != '\n')
			continue;
		verdict = http_character(parser, character);
		if (verdict != HTTP_GOES_ON)
			return verdict;
	}
	return HTTP_GOES_ON;
}

static __always_inline void http_begin(struct http_parser *parser)
{
	parser->phase = HTTP_REQUEST_LINE;
	parser->position = AT_START;
	parser->began = 0;
	parser->length = 0;
	parser->line_end = 0;
}

/* Reads on in a header; `available` of `length` characters at `data` can be read. The parser is idle afterwards
 * unless the header goes on. A function of its own because of its stack.
 */
__noinline int http_read(struct http_parser *parser, __u64 data, __u32 available, __u32 length)
{
	int verdict = HTTP_GOES_ON;
	struct http_chunk chunk;
	__u32 done = 0;

	if (!parser)
		return HTTP_ENDED;
	for (int i = 0; i < HTTP_CHUNKS && verdict == HTTP_GOES_ON && done < available; i++) {
		__u32 size = available - done;

		if (size > HTTP_CHUNK)
			size = HTTP_CHUNK;
		if (bpf_probe_read_user(&chunk, size, (void *)(data + done)))
			verdict = HTTP_UNREADABLE;
		else
			verdict = http_scan(parser, &chunk, size);
		done += size;
	}
	parser->length += length;
	if (verdict == HTTP_GOES_ON && (done < length || parser->length > HTTP_MAX_HEADER))
		verdict = HTTP_ENDED;
	if (verdict != HTTP_GOES_ON)
		parser->phase = HTTP_IDLE;
	return verdict;
}

/* 0 to 15, or more for what is no digit; capitals are none (W3C Trace Context). */
static __always_inline __u8 hexadecimal(__u8 character)
{
	if (character >= '0' && character <= '9')
		return character - '0';
	if (character >= 'a' && character <= 'f')
		return character - 'a' + 10;
	return 0xff;
}

/* The ids of a `traceparent` that was read whole; false when it is none by the rules of W3C Trace Context. */
static __always_inline bool decode_traceparent(const struct http_parser *parser, struct origin *origin)
{
	enum { VERSION = 0, TRACE_ID = 1, SPAN_ID = 17, FLAGS = 25, BYTES = 26 };
	__u8 bytes[BYTES];
	__u64 trace_id[2], span_id;
	bool wrong = false;

	for (int i = 0; i < BYTES; i++) {
		int at = 2 * i + (i >= TRACE_ID) + (i >= SPAN_ID) + (i >= FLAGS); /* the dashes before it */
		__u8 high = hexadecimal(parser->value[at]), low = hexadecimal(parser->value[at + 1]);

		wrong |= (high | low) > 15;
		bytes[i] = high << 4 | low;
	}
	wrong |= parser->value[2] != '-' || parser->value[35] != '-' || parser->value[52] != '-';
	wrong |= bytes[VERSION] == 0xff;
	wrong |= bytes[VERSION] == 0 && parser->position == AT_MORE;
	if (wrong) {
		count(COUNTER_BAD_HEADER);
		return false;
	}
	__builtin_memcpy(trace_id, bytes + TRACE_ID, sizeof(trace_id));
	__builtin_memcpy(&span_id, bytes + SPAN_ID, sizeof(span_id));
	if (is_zero(trace_id, span_id)) {
		count(COUNTER_ZERO_IDS);
		return false;
	}
	origin->trace_id[0] = trace_id[0];
	origin->trace_id[1] = trace_id[1];
	origin->span_id = span_id;
	origin->trace_flags = bytes[FLAGS];
	return true;
}

#endif
