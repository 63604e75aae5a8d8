/* What user space writes of a process that publishes its spans. To be included behind the program. */
#ifndef FOLLOW_H
#define FOLLOW_H

static void follow(__u32 tgid, struct thread_layout layout)
{
	__u32 number = FIRST_LAYOUT;

	bpf_map_update_elem(&layouts, &number, &layout, BPF_ANY);
	row_of(tgid)->known[tgid % PROCESSES_A_ROW] = number;
}

#endif
