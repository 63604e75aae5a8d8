/* A thread that publishes its spans, and a connection that it uses. To be included behind the program. */
#ifndef CONNECTION_H
#define CONNECTION_H

#include "follow.h"

enum { TGID = 42, TID = 43 };

static struct task_struct task;
static struct thread_record record;
static struct thread_record *variable = &record;
static struct fake_connection connection;
static struct sock *sk = &connection.sock;

static void begin_with(unsigned short protocol)
{
	connection = (struct fake_connection){
		.sock = {.__sk_common.skc_family = ADDRESS_FAMILY_INET, .sk_protocol = protocol},
		.tcp = {.copied_seq = 500, .write_seq = 1000},
	};
	task = (struct task_struct){.tgid = TGID, .pid = TID, .thread.fsbase = (unsigned long)&variable};
	fake.task = &task;
	fake.now = 1;
	follow(TGID, (struct thread_layout){});
}

static void begin(void)
{
	begin_with(PROTOCOL_TCP);
}

/* 0: at none. */
static void at_work_on(__u64 span)
{
	record = (struct thread_record){.trace_id = {1, 2}, .span_id = span, .valid = span != 0};
}

#endif
