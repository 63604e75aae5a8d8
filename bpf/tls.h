/* TLS handshakes of OpenSSL. Mirrored by otel_bridge/kernel/records.py. */
#ifndef OTEL_BRIDGE_TLS_H
#define OTEL_BRIDGE_TLS_H

#include "common/event.h"

enum tls_role {
	TLS_ROLE_UNKNOWN = 0,
	TLS_ROLE_CLIENT = 1,
	TLS_ROLE_SERVER = 2,
};

/* The handshake was given up: its object was freed or reset before it was done. */
#define TLS_ABANDONED (-1)

/* One whole handshake, over however many calls it took. */
struct tls_event {
	struct kernel_event event; /* error: SSL_get_error()'s code, or TLS_ABANDONED; 0: it succeeded */
	__s32 fd; /* -1: none, the connection runs over memory */
	__u32 calls; /* how often the function was called until it was done */
	__u16 version; /* as on the wire, 0x0303 for TLS 1.2; 0: unknown */
	__u8 role; /* enum tls_role */
	__u8 _pad[5];
};

_Static_assert(sizeof(struct tls_event) == 72, "mirrored in records.py");

#endif
