/* Runs a program as its raw tracepoint would, in the calling thread, with arguments of the test's own. */
#include <errno.h>
#include <linux/bpf.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Where pid has a program under the descriptor fd. Answers 0 or an errno. */
int run_tracepoint(int pid, int fd, unsigned long long first, unsigned long long second, unsigned long long third)
{
	unsigned long long arguments[] = {first, second, third};
	int process = syscall(SYS_pidfd_open, pid, 0), program, failed;
	union bpf_attr attributes;

	if (process < 0)
		return errno;
	program = syscall(SYS_pidfd_getfd, process, fd, 0);
	failed = program < 0 ? errno : 0;
	close(process);
	if (failed)
		return failed;
	memset(&attributes, 0, sizeof(attributes));
	attributes.test.prog_fd = program;
	attributes.test.ctx_in = (unsigned long)arguments;
	attributes.test.ctx_size_in = sizeof(arguments);
	if (syscall(SYS_bpf, BPF_PROG_TEST_RUN, &attributes, sizeof(attributes)))
		failed = errno;
	close(program);
	return failed;
}
