/* The least that a dump of connections can cost: ask the kernel and receive.
 *
 *   dump_floor STATES:EXTENSIONS... -- PORT...
 *
 * For each line on standard input it makes one dump per pair of masks, filtered to those local ports by the kernel,
 * and prints the nanoseconds of CPU time and the bytes received. The request is the sidecar's, byte for byte: one walk for
 * IPv4 and IPv6. Built by benchmarks/kernel_snapshot.py with -O2.
 */
#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/sock_diag.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define MAX_PORTS 64
static struct {
	struct nlmsghdr header;
	struct inet_diag_req request;
	struct nlattr attribute;
	struct inet_diag_bc_op program[3 * MAX_PORTS];
} ask;
static char buffer[1 << 16] __attribute__((aligned(64)));

static void prepare(int ports, char **port)
{
	int left = ports * 12 - 4, n = 0;
	ask.header.nlmsg_type = TCPDIAG_GETSOCK;
	ask.header.nlmsg_flags = NLM_F_REQUEST | NLM_F_DUMP;
	ask.header.nlmsg_len = sizeof ask.header + sizeof ask.request + sizeof ask.attribute + left;
	ask.attribute.nla_type = INET_DIAG_REQ_BYTECODE;
	ask.attribute.nla_len = sizeof ask.attribute + left;
	for (int i = 0; i < ports; i++) {
		ask.program[n++] = (struct inet_diag_bc_op){INET_DIAG_BC_S_EQ, 8, 12};
		ask.program[n++] = (struct inet_diag_bc_op){0, 0, atoi(port[i])};
		left -= 8;
		if (i < ports - 1)
			ask.program[n++] = (struct inet_diag_bc_op){INET_DIAG_BC_JMP, 4, left};
		left -= 4;
	}
}

/* The end of a dump is a message of 20 bytes, alone or behind the last socket. */
static long dump(int netlink, const char *masks)
{
	long bytes = 0;
	ask.request.idiag_states = strtoul(masks, NULL, 0);
	ask.request.idiag_ext = strtoul(strchr(masks, ':') + 1, NULL, 0);
	if (send(netlink, &ask, ask.header.nlmsg_len, 0) < 0)
		exit(1);
	for (;;) {
		ssize_t size = recv(netlink, buffer, sizeof buffer, 0);
		struct nlmsghdr *first = (void *)buffer, *last = (void *)(buffer + size - 20);
		if (size < 20 || first->nlmsg_type == NLMSG_ERROR)
			exit(2);
		bytes += size;
		if (last->nlmsg_type == NLMSG_DONE && last->nlmsg_len == 20)
			return bytes - 20;
	}
}

static long cpu(void)
{
	struct timespec now;
	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
	return now.tv_sec * 1000000000L + now.tv_nsec;
}

int main(int count, char **words)
{
	int netlink = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_SOCK_DIAG), first = 1;
	char line[16];
	if (netlink < 0 || count < 4)
		return 4;
	while (first < count && strcmp(words[first], "--"))
		first++;
	if (first + 1 >= count || count - first - 1 > MAX_PORTS)
		return 4;
	prepare(count - first - 1, words + first + 1);
	while (fgets(line, sizeof line, stdin)) {
		long started = cpu(), bytes = 0;
		for (int i = 1; i < first; i++)
			bytes += dump(netlink, words[i]);
		printf("%ld %ld\n", cpu() - started, bytes);
		fflush(stdout);
	}
	return 0;
}
