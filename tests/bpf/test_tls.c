/* TLS handshakes: one event each, in whatever order a program calls OpenSSL. */
#include "bpf/tls.bpf.c"
#include "check.h"

enum { TGID = 42, TID = 43, WANT_READ = 2, FAILED = -1, DONE = 1 };

static struct {
	int version;
	char rest[124];
} object = {.version = 0x0304};
static struct task_struct task;

#define SSL ((__u64)(unsigned long)&object)

static void begin(void)
{
	object.version = 0x0304;
	task = (struct task_struct){.tgid = TGID, .pid = TID};
	fake.task = &task;
	fake.thread = (__u64)TGID << 32 | TID;
	fake.now = 1000;
}

static void pass(__u64 nanoseconds)
{
	fake.now += nanoseconds;
}

static const struct tls_event *event(int number)
{
	return (const void *)fake.records[number];
}

static void handshake(int result)
{
	SSL_do_handshake(NULL, SSL);
	pass(10);
	handshake_return(NULL, result);
}

static void ask_error(int code)
{
	SSL_get_error(NULL, SSL);
	SSL_get_error_return(NULL, code);
}

static void a_handshake_in_one_call(void)
{
	begin();
	SSL_set_fd(NULL, SSL, 5);
	handshake(DONE);
	CHECK(fake.submitted == 1);
	CHECK(event(0)->event.kind == EVENT_TLS_HANDSHAKE && event(0)->event.duration_ns == 10);
	CHECK(event(0)->event.error == 0 && event(0)->fd == 5 && event(0)->calls == 1);
	CHECK(event(0)->version == 0x0304);
	for (size_t i = 0; i < sizeof(*event(0)); i++)
		CHECK(((const unsigned char *)event(0))[i] != 0xa5);
}

static void waiting_for_the_peer_is_part_of_it_and_no_error(void)
{
	begin();
	for (int i = 0; i < 22; i++) {
		handshake(FAILED);
		ask_error(WANT_READ);
		pass(1000);
	}
	CHECK(fake.submitted == 0);
	handshake(DONE);
	CHECK(fake.submitted == 1);
	CHECK(event(0)->calls == 23 && event(0)->event.error == 0 && event(0)->fd == -1);
	CHECK(event(0)->event.duration_ns == 22 * 1010 + 10);
}

static void nested_calls_count_once(void)
{
	begin();
	SSL_connect(NULL, SSL);
	SSL_do_handshake(NULL, SSL);
	handshake_return(NULL, DONE);
	CHECK(fake.submitted == 0);
	handshake_return(NULL, DONE);
	CHECK(fake.submitted == 1);
	CHECK(event(0)->calls == 1 && event(0)->role == TLS_ROLE_CLIENT);
}

static void a_finished_handshake_is_not_told_again(void)
{
	begin();
	handshake(DONE);
	handshake(DONE);
	ask_error(SSL_ERROR_SSL);
	SSL_free(NULL, SSL);
	CHECK(fake.submitted == 1);
}

static void a_failure_is_told_with_its_code_once(void)
{
	begin();
	handshake(FAILED);
	ask_error(SSL_ERROR_SSL);
	ask_error(SSL_ERROR_SSL);
	SSL_free(NULL, SSL);
	CHECK(fake.submitted == 1 && event(0)->event.error == SSL_ERROR_SSL);
}

static void a_handshake_that_is_given_up_is_told_when_its_object_goes(void)
{
	begin();
	handshake(FAILED);
	ask_error(WANT_READ);
	pass(500);
	SSL_free(NULL, SSL);
	CHECK(fake.submitted == 1 && event(0)->event.error == TLS_ABANDONED);
	CHECK(event(0)->event.duration_ns == 510);
}

static void an_object_that_is_freed_serves_again_as_new(void)
{
	begin();
	SSL_set_fd(NULL, SSL, 5);
	handshake(DONE);
	SSL_free(NULL, SSL);
	handshake(DONE);
	CHECK(fake.submitted == 2 && event(1)->fd == -1 && event(1)->calls == 1);
}

static void an_object_that_is_reset_does_another_handshake(void)
{
	begin();
	handshake(DONE);
	SSL_clear(NULL, SSL);
	handshake(DONE);
	CHECK(fake.submitted == 2);
}

static void openssl_clears_the_object_itself_inside_a_handshake(void)
{
	begin();
	SSL_do_handshake(NULL, SSL);
	SSL_clear(NULL, SSL);
	handshake_return(NULL, DONE);
	CHECK(fake.submitted == 1 && event(0)->event.error == 0);
}

static void a_thread_that_died_in_a_call_leaves_nothing_to_the_next_of_its_number(void)
{
	begin();
	SSL_do_handshake(NULL, SSL);
	sched_process_exit(NULL, &task);
	SSL_free(NULL, SSL);
	fake.submitted = 0;
	handshake(DONE);
	CHECK(fake.submitted == 1 && event(0)->calls == 1);
}

static void the_version_is_read_where_this_openssl_keeps_it(void)
{
	begin();
	object.version = 0; /* since 3.2 a type comes first, 0 for TLS */
	*(int *)((char *)&object + 72) = 0x0303;
	handshake(DONE);
	CHECK(event(0)->version == 0x0303);
	SSL_free(NULL, SSL);
	*(int *)((char *)&object + 72) = 0x12345;
	handshake(DONE);
	CHECK(event(1)->version == 0);
}

static void returns_without_a_call_are_nothing(void)
{
	begin();
	handshake_return(NULL, DONE);
	SSL_get_error_return(NULL, SSL_ERROR_SSL);
	SSL_free(NULL, SSL);
	SSL_clear(NULL, SSL);
	CHECK(fake.submitted == 0);
}

int main(void)
{
	RUN(a_handshake_in_one_call);
	RUN(waiting_for_the_peer_is_part_of_it_and_no_error);
	RUN(nested_calls_count_once);
	RUN(a_finished_handshake_is_not_told_again);
	RUN(a_failure_is_told_with_its_code_once);
	RUN(a_handshake_that_is_given_up_is_told_when_its_object_goes);
	RUN(an_object_that_is_freed_serves_again_as_new);
	RUN(an_object_that_is_reset_does_another_handshake);
	RUN(openssl_clears_the_object_itself_inside_a_handshake);
	RUN(a_thread_that_died_in_a_call_leaves_nothing_to_the_next_of_its_number);
	RUN(the_version_is_read_where_this_openssl_keeps_it);
	RUN(returns_without_a_call_are_nothing);
	return 0;
}
