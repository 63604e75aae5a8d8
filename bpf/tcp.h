/* TCP events. Mirrored by otel_bridge/kernel/records.py. */
#ifndef OTEL_BRIDGE_TCP_H
#define OTEL_BRIDGE_TCP_H

#include "common/event.h"

/* Addresses are IPv6, IPv4 mapped (::ffff:a.b.c.d). */
struct tcp_event {
	struct kernel_event event; /* duration: of a connection attempt, or how long the window was zero */
	__u8 local_address[16];
	__u8 remote_address[16];
	__u16 local_port;
	__u16 remote_port;
	__u8 state; /* TCP state at the event; after it for EVENT_TCP_CONNECT */
	__u8 protocol; /* IPPROTO_TCP, but for EVENT_RECEIVE_QUEUE_FULL: that comes of others as well */
	__u8 _pad[2];
	/* Of payload in a segment that is sent again; that waited for a window; of a datagram that found no room. */
	__u32 bytes;
	__u32 smoothed_rtt_us;
	__u32 retransmits; /* of this connection so far, in segments */
	__u32 segments; /* EVENT_TCP_RETRANSMIT: sent again by this one, which offload may cut only later */
};

_Static_assert(sizeof(struct tcp_event) == 112, "mirrored in records.py");
_Static_assert(offsetof(struct tcp_event, local_port) == 88, "mirrored in records.py");
_Static_assert(offsetof(struct tcp_event, bytes) == 96, "mirrored in records.py");

struct tcp_config {
	__u64 connect_threshold_ns; /* attempts that succeed faster are not events */
	__u64 window_threshold_ns; /* windows that are zero for less are not events */
};

#endif
