/* TLS handshakes: from the first call to the call that returns 1, by uprobes on libssl.
 *
 * On a non-blocking connection the function returns many times with "want read" before it is done; that is
 * told from a failure by what the program learns itself from SSL_get_error().
 */
#include "tls.h"
#include "common/context.bpf.h"
#include "common/emit.bpf.h"

char LICENSE[] SEC("license") = "Dual MIT/GPL";

/* openssl/ssl.h */
enum {
	SSL_ERROR_SSL = 1,
	SSL_ERROR_SYSCALL = 5,
	SSL_ERROR_ZERO_RETURN = 6,
};

struct connection_key {
	__u32 tgid;
	__u32 _pad;
	__u64 ssl; /* address of the SSL object */
};

struct connection {
	__u64 began_ns; /* 0: no handshake under way */
	struct origin origin;
	__s32 fd_plus_one; /* 0: none */
	__u32 calls;
	__u8 done; /* later calls only say so again */
	__u8 role;
	__u8 _pad[6];
};

MAP(connections, BPF_MAP_TYPE_LRU_HASH, 16384, struct connection_key, struct connection);

struct call {
	__u64 ssl;
	__u64 depth; /* SSL_connect() and SSL_accept() call SSL_do_handshake() */
};

/* By thread: the handshake call it is in, and the SSL_get_error() call. */
MAP(handshake_calls, BPF_MAP_TYPE_LRU_HASH, 16384, __u64, struct call);
MAP(error_calls, BPF_MAP_TYPE_LRU_HASH, 16384, __u64, struct call);

static __always_inline struct connection_key key_of(__u64 ssl)
{
	return (struct connection_key){.tgid = bpf_get_current_pid_tgid() >> 32, .ssl = ssl};
}

static __always_inline struct connection *find(__u64 ssl)
{
	struct connection_key key = key_of(ssl);

	return bpf_map_lookup_elem(&connections, &key);
}

static __always_inline struct connection *find_or_make(__u64 ssl)
{
	struct connection_key key = key_of(ssl);
	struct connection *found = bpf_map_lookup_elem(&connections, &key), fresh = {};

	if (found)
		return found;
	if (bpf_map_update_elem(&connections, &key, &fresh, BPF_NOEXIST)) {
		count(COUNTER_LOST_STATE);
		return NULL;
	}
	return bpf_map_lookup_elem(&connections, &key);
}

/* Where an SSL object keeps its protocol version: its first field until OpenSSL 3.1, at 72 since 3.2, whose
 * first field is a type (0 for TLS). A number that is no version is none.
 */
static __always_inline __u16 version_of(__u64 ssl)
{
	enum { OFFSET_SINCE_3_2 = 72, SSL3 = 0x300, TLS1_3 = 0x304, DTLS1 = 0xfeff, DTLS1_2 = 0xfefd };
	__u32 version = 0;

	if (bpf_probe_read_user(&version, sizeof(version), (void *)ssl))
		return 0;
	if (version == 0 && bpf_probe_read_user(&version, sizeof(version), (void *)(ssl + OFFSET_SINCE_3_2)))
		return 0;
	if ((version >= SSL3 && version <= TLS1_3) || version == DTLS1 || version == DTLS1_2)
		return version;
	return 0;
}

static __always_inline void finish(struct connection *connection, __u64 ssl, __s32 error)
{
	__u64 now = bpf_ktime_get_boot_ns();
	struct origin origin;
	struct tls_event *record;
	__u64 took = now - connection->began_ns;

	origin = connection->origin;
	if (origin.match == MATCH_NONE)
		current_origin(&origin);
	connection->began_ns = 0;
	connection->done = 1;
	record = reserve(sizeof(*record), now);
	if (!record)
		return;
	fill(&record->event, EVENT_TLS_HANDSHAKE, &origin, now);
	record->event.duration_ns = took;
	record->event.error = error;
	record->fd = connection->fd_plus_one - 1;
	record->calls = connection->calls;
	record->version = version_of(ssl);
	record->role = connection->role;
	__builtin_memset(record->_pad, 0, sizeof(record->_pad));
	bpf_ringbuf_submit(record, 0);
}

static __always_inline void call_begins(__u64 ssl, enum tls_role role)
{
	__u64 thread = bpf_get_current_pid_tgid();
	struct call *outer = bpf_map_lookup_elem(&handshake_calls, &thread);
	struct call call = {.ssl = ssl, .depth = 1};
	struct connection *connection;

	if (outer && outer->ssl == ssl) {
		outer->depth++;
		return;
	}
	connection = find_or_make(ssl);
	if (!connection || connection->done)
		return;
	if (!connection->began_ns) {
		connection->began_ns = bpf_ktime_get_boot_ns();
		connection->calls = 0;
		current_origin(&connection->origin);
	}
	connection->calls++;
	if (role != TLS_ROLE_UNKNOWN)
		connection->role = role;
	if (bpf_map_update_elem(&handshake_calls, &thread, &call, BPF_ANY))
		count(COUNTER_LOST_STATE);
}

static __always_inline void call_ends(int result)
{
	__u64 thread = bpf_get_current_pid_tgid(), ssl;
	struct call *call = bpf_map_lookup_elem(&handshake_calls, &thread);
	struct connection *connection;

	if (!call)
		return;
	if (--call->depth)
		return;
	ssl = call->ssl;
	bpf_map_delete_elem(&handshake_calls, &thread);
	connection = find(ssl);
	if (connection && connection->began_ns && result == 1)
		finish(connection, ssl, 0);
}

static __always_inline void set_role(__u64 ssl, enum tls_role role)
{
	struct connection *connection = find_or_make(ssl);

	if (!connection)
		return;
	connection->role = role;
	connection->done = 0;
}

static __always_inline void set_fd(__u64 ssl, int fd)
{
	struct connection *connection = find_or_make(ssl);

	if (connection)
		connection->fd_plus_one = fd + 1;
}

static __always_inline void error_is_asked(__u64 ssl)
{
	__u64 thread = bpf_get_current_pid_tgid();
	struct connection *connection = find(ssl);
	struct call call = {.ssl = ssl};

	if (connection && connection->began_ns && bpf_map_update_elem(&error_calls, &thread, &call, BPF_ANY))
		count(COUNTER_LOST_STATE);
}

static __always_inline void error_is_told(int code)
{
	__u64 thread = bpf_get_current_pid_tgid(), ssl;
	struct call *call = bpf_map_lookup_elem(&error_calls, &thread);
	struct connection *connection;

	if (!call)
		return;
	ssl = call->ssl;
	bpf_map_delete_elem(&error_calls, &thread);
	if (code != SSL_ERROR_SSL && code != SSL_ERROR_SYSCALL && code != SSL_ERROR_ZERO_RETURN)
		return;
	connection = find(ssl);
	if (connection && connection->began_ns)
		finish(connection, ssl, code);
}

static __always_inline void give_up(struct connection *connection, __u64 ssl)
{
	if (connection->began_ns)
		finish(connection, ssl, TLS_ABANDONED);
	connection->done = 0;
}

/* OpenSSL itself clears the object at the beginning of a handshake, inside the call. */
static __always_inline void clear(__u64 ssl)
{
	__u64 thread = bpf_get_current_pid_tgid();
	struct call *outer = bpf_map_lookup_elem(&handshake_calls, &thread);
	struct connection *connection = find(ssl);

	if (connection && !(outer && outer->ssl == ssl))
		give_up(connection, ssl);
}

static __always_inline void forget(__u64 ssl)
{
	struct connection_key key = key_of(ssl);
	struct connection *connection = bpf_map_lookup_elem(&connections, &key);

	if (!connection)
		return;
	give_up(connection, ssl);
	bpf_map_delete_elem(&connections, &key);
}

SEC("uprobe")
int BPF_KPROBE(SSL_do_handshake, __u64 ssl)
{
	call_begins(ssl, TLS_ROLE_UNKNOWN);
	return 0;
}

SEC("uprobe")
int BPF_KPROBE(SSL_connect, __u64 ssl)
{
	call_begins(ssl, TLS_ROLE_CLIENT);
	return 0;
}

SEC("uprobe")
int BPF_KPROBE(SSL_accept, __u64 ssl)
{
	call_begins(ssl, TLS_ROLE_SERVER);
	return 0;
}

SEC("uretprobe")
int BPF_KRETPROBE(handshake_return, int result)
{
	call_ends(result);
	return 0;
}

SEC("uprobe")
int BPF_KPROBE(SSL_get_error, __u64 ssl)
{
	error_is_asked(ssl);
	return 0;
}

SEC("uretprobe")
int BPF_KRETPROBE(SSL_get_error_return, int code)
{
	error_is_told(code);
	return 0;
}

SEC("uprobe")
int BPF_KPROBE(SSL_set_fd, __u64 ssl, int fd)
{
	set_fd(ssl, fd);
	return 0;
}

SEC("uprobe")
int BPF_KPROBE(SSL_set_connect_state, __u64 ssl)
{
	set_role(ssl, TLS_ROLE_CLIENT);
	return 0;
}

SEC("uprobe")
int BPF_KPROBE(SSL_set_accept_state, __u64 ssl)
{
	set_role(ssl, TLS_ROLE_SERVER);
	return 0;
}

SEC("uprobe")
int BPF_KPROBE(SSL_clear, __u64 ssl)
{
	clear(ssl);
	return 0;
}

SEC("uprobe")
int BPF_KPROBE(SSL_free, __u64 ssl)
{
	forget(ssl);
	return 0;
}

/* A thread that dies in a call leaves nothing for the next one of the same number. */
SEC("tp_btf/sched_process_exit")
int BPF_PROG(sched_process_exit, struct task_struct *task)
{
	__u64 thread = thread_of(task);

	bpf_map_delete_elem(&handshake_calls, &thread);
	bpf_map_delete_elem(&error_calls, &thread);
	return 0;
}
