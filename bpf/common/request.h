/* HTTP/1.1 requests of programs that publish no spans: what is known of the one that a connection is at. */
#ifndef OTEL_BRIDGE_REQUEST_H
#define OTEL_BRIDGE_REQUEST_H

#include "context.h"

/* How far a header has been read (http.bpf.h). */
struct http_parser {
	__u64 line_end; /* last eight characters of the request line */
	__u32 length; /* of the header so far */
	__u8 phase; /* enum http_phase */
	__u8 position; /* enum http_position */
	__u8 began; /* the request line is whole, and was not told yet */
	__u8 _pad;
	__u8 value[64]; /* TRACEPARENT_VALUE of it are used; a power of two bounds the index */
};

struct http_request {
	struct http_parser parser;
	struct origin origin; /* MATCH_HEADER, or MATCH_NONE */
	__u64 reader; /* thread */
	__u8 open;
	__u8 changed; /* `origin` is not on the socket yet */
	__u8 encrypted; /* the header is read by way of libssl */
	__u8 _pad[5];
};

#endif
