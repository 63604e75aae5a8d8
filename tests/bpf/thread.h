/* A thread that publishes its span. To be included behind the program. */
#ifndef THREAD_H
#define THREAD_H

#include "follow.h"

static struct task_struct thread;
static struct thread_record record;
static struct thread_record *variable = &record;

static void at_work_on(__u64 span)
{
	record = (struct thread_record){.trace_id = {1, 2}, .span_id = span, .valid = span != 0};
}

/* The first of its process, which is followed. */
static void begin_thread(__u32 tgid)
{
	thread = (struct task_struct){
		.tgid = tgid, .pid = tgid, .mm = &thread, .thread.fsbase = (unsigned long)&variable};
	follow(tgid, (struct thread_layout){});
	fake.task = &thread;
	fake.thread = (__u64)tgid << 32 | tgid;
}

#endif
