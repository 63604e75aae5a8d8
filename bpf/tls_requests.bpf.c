/* HTTP/1.1 requests that come in encrypted: read where libssl hands them to the program. */
#include "common/request.bpf.h"

char LICENSE[] SEC("license") = "Dual MIT/GPL";

struct read_call {
	__u64 data;
	__u64 length_at; /* SSL_read_ex() writes the length there; 0: SSL_read() returns it */
};

/* By thread: the call it is in. */
MAP(read_calls, BPF_MAP_TYPE_LRU_HASH, 16384, __u64, struct read_call);

/* False when the process publishes its spans itself; else it is known from now on that it uses libssl. */
static __always_inline bool is_silent(__u64 thread)
{
	__u32 tgid = thread >> 32;

	if (publishes(known_of(tgid)))
		return false;
	note_silent(tgid, SILENT_TLS);
	return true;
}

static __always_inline void read_begins(__u64 data, __u64 length_at)
{
	struct read_call call = {.data = data, .length_at = length_at};
	__u64 thread = bpf_get_current_pid_tgid();

	if (is_silent(thread) && bpf_map_update_elem(&read_calls, &thread, &call, BPF_ANY))
		count(COUNTER_LOST_STATE);
}

static __always_inline __u32 length_of(const struct read_call *call, int result)
{
	__u64 length = 0;

	if (result <= 0)
		return 0;
	if (!call->length_at)
		return result;
	if (bpf_probe_read_user(&length, sizeof(length), (void *)call->length_at))
		count(COUNTER_UNREADABLE);
	return length;
}

static __always_inline void decrypted(__u64 socket, const void *data, __u32 length)
{
	struct http_request *request = request_on(socket);

	if (!is_header(request, data, length))
		return;
	if (!request)
		request = make_request(socket);
	if (!request)
		return;
	request->encrypted = 1;
	header_is_read(request, socket, data, length, length);
}

static __always_inline void read_ends(int result)
{
	__u64 thread = bpf_get_current_pid_tgid();
	struct read_call *found = bpf_map_lookup_elem(&read_calls, &thread);
	struct thread_request *at = request_of_thread(thread);
	struct read_call call;
	__u32 length;

	if (!found)
		return;
	call = *found;
	bpf_map_delete_elem(&read_calls, &thread);
	length = length_of(&call, result);
	if (length && at && at->received)
		decrypted(at->received, (void *)call.data, length);
}

SEC("uprobe")
int BPF_KPROBE(SSL_read, void *ssl, __u64 data)
{
	read_begins(data, 0);
	return 0;
}

SEC("uprobe")
int BPF_KPROBE(SSL_read_ex, void *ssl, __u64 data, __u64 size, __u64 length_at)
{
	read_begins(data, length_at);
	return 0;
}

SEC("uretprobe")
int BPF_KRETPROBE(read_return, int result)
{
	read_ends(result);
	return 0;
}

/* What it receives from now on is noted, the first request's record included. */
SEC("uprobe")
int BPF_KPROBE(SSL_do_handshake, void *ssl)
{
	is_silent(bpf_get_current_pid_tgid());
	return 0;
}

/* A thread that dies in a call leaves nothing for the next one of the same number. */
SEC("tp_btf/sched_process_exit")
int BPF_PROG(sched_process_exit, struct task_struct *task)
{
	__u64 thread = thread_of(task);

	bpf_map_delete_elem(&read_calls, &thread);
	return 0;
}
