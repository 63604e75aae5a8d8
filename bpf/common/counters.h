/* What each probe counts about itself, per CPU. Mirrored by otel_bridge/kernel/records.py. */
#ifndef OTEL_BRIDGE_COUNTERS_H
#define OTEL_BRIDGE_COUNTERS_H

enum counter {
	COUNTER_PRODUCED, /* events that were to be handed over: delivered + dropped + limited, exactly */
	COUNTER_DROPPED, /* the ring buffer was full */
	COUNTER_LIMITED, /* over the rate limit */
	COUNTER_ZERO_IDS, /* a valid record with an all-zero id */
	COUNTER_TORN, /* a record or stamp seen half written */
	COUNTER_UNREADABLE, /* a record in memory that is not there now */
	COUNTER_LOST_STATE, /* a table was full: something could not be followed */
	COUNTER_BAD_HEADER, /* a traceparent that is none */
	COUNTER_MAX,
};

#endif
