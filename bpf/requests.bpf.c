/* HTTP/1.1 requests that programs read which publish no spans: the socket carries the span that a request names. */
#include "common/request.bpf.h"
#include "common/socket.bpf.h"
#include "common/syscall.bpf.h"

char LICENSE[] SEC("license") = "Dual MIT/GPL";

enum {
	SOCKET_STREAM = 1, /* SOCK_STREAM */
	FLAG_PEEK = 2, /* MSG_PEEK: it will be read once more */
	ERROR_AGAIN = 11, /* EAGAIN: nothing was sent */
};

static __always_inline void keep_use_true(struct sock *sk, struct http_request *request)
{
	if (!request->changed)
		return;
	request->changed = 0;
	note_use(sk, &request->origin);
}

static __always_inline struct http_request *received_plain(struct http_request *request, struct sock *sk,
							   struct task_struct *task, __u32 length)
{
	struct user_buffer buffer = {};
	__u32 available;
	__u64 socket;

	if (!buffer_of_syscall(task, length, &buffer))
		buffer.size = 0;
	available = buffer.size < length ? buffer.size : length;
	if (!is_header(request, buffer.data, available))
		return request;
	socket = bpf_get_socket_cookie(sk);
	if (!request)
		request = make_request(socket);
	if (request)
		header_is_read(request, socket, buffer.data, available, length);
	return request;
}

/* A process without a place in the table has had no request yet: of all that it reads, only the first characters
 * are looked at.
 */
static __always_inline void received(struct sock *sk, int length, int flags)
{
	struct task_struct *task = bpf_get_current_task_btf();
	__u32 known = known_of(FIELD(task, tgid));
	struct http_request *request = NULL;
	__u64 socket;

	if (length <= 0 || (flags & FLAG_PEEK) || FIELD(sk, sk_type) != SOCKET_STREAM || publishes(known))
		return;
	if (known) {
		socket = bpf_get_socket_cookie(sk);
		if (known & SILENT_TLS)
			thread_received(thread_of(task), socket);
		request = request_on(socket);
	}
	if (request && request->encrypted)
		read_after_answer(request);
	else
		request = received_plain(request, sk, task, length);
	if (request)
		keep_use_true(sk, request);
}

/* "HTTP/1.1 1…": 100 Continue and the like come before the answer. */
static __always_inline bool is_interim(struct task_struct *task, __u32 length)
{
	struct user_buffer buffer = {};
	__u8 beginning[10];

	return buffer_of_syscall(task, length, &buffer) && buffer.size >= sizeof(beginning) &&
	       !bpf_probe_read_user(beginning, sizeof(beginning), buffer.data) && beginning[0] == 'H' &&
	       beginning[4] == '/' && beginning[8] == ' ' && beginning[9] == '1';
}

static __always_inline void sent(struct sock *sk, int length)
{
	struct task_struct *task = bpf_get_current_task_btf();
	__u32 known = known_of(FIELD(task, tgid));
	struct http_request *request;
	__u64 socket;

	if (!known || publishes(known))
		return;
	socket = bpf_get_socket_cookie(sk);
	request = request_on(socket);
	if (!request)
		return;
	if (request->open && length != -ERROR_AGAIN && (length < 0 || !is_interim(task, length)))
		answer_begins(request, socket);
	keep_use_true(sk, request);
}

SEC("tp_btf/sock_recv_length")
int BPF_PROG(request_received, struct sock *sk, int length, int flags)
{
	received(sk, length, flags);
	return 0;
}

SEC("tp_btf/sock_send_length")
int BPF_PROG(answer_sent, struct sock *sk, int length)
{
	sent(sk, length);
	return 0;
}

/* The next thread of the same number is at nothing. */
SEC("tp_btf/sched_process_exit")
int BPF_PROG(sched_process_exit, struct task_struct *task)
{
	__u64 thread = thread_of(task);

	bpf_map_delete_elem(&thread_requests, &thread);
	return 0;
}
