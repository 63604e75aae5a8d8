/* Answers HTTP/1.1 over TLS, one request a connection, and publishes nothing.
 *
 *     tls_server SSL_read|SSL_read_ex CERTIFICATE
 *
 * Prints its port. `x-refuse: ADDRESS PORT TIMES` in a request has so many connections refused before the answer.
 */
#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <openssl/ssl.h>

static const char answer[] = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";

static void refuse(const char *request)
{
	struct sockaddr_in to = {.sin_family = AF_INET};
	const char *order = strstr(request, "x-refuse: ");
	int port, times, socket_;
	char address[32];

	if (!order || sscanf(order, "x-refuse: %31s %d %d", address, &port, &times) != 3)
		exit(1);
	inet_pton(AF_INET, address, &to.sin_addr);
	to.sin_port = htons(port);
	while (times-- > 0) {
		socket_ = socket(AF_INET, SOCK_STREAM, 0);
		if (!connect(socket_, (struct sockaddr *)&to, sizeof(to)))
			exit(2);
		close(socket_);
	}
}

static size_t read_request(SSL *session, int by_ex, char *buffer, size_t size)
{
	size_t length = 0;
	int result;

	if (by_ex)
		return SSL_read_ex(session, buffer, size, &length) == 1 ? length : 0;
	result = SSL_read(session, buffer, size);
	return result > 0 ? result : 0;
}

int main(int count, char **arguments)
{
	SSL_CTX *context = SSL_CTX_new(TLS_server_method());
	struct sockaddr_in own = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	int listener = socket(AF_INET, SOCK_STREAM, 0), by_ex = !strcmp(arguments[1], "SSL_read_ex");
	socklen_t length = sizeof(own);
	static char request[1 << 14];

	if (SSL_CTX_use_certificate_chain_file(context, arguments[2]) != 1 ||
	    SSL_CTX_use_PrivateKey_file(context, arguments[2], SSL_FILETYPE_PEM) != 1 ||
	    bind(listener, (struct sockaddr *)&own, sizeof(own)) || listen(listener, 16) ||
	    getsockname(listener, (struct sockaddr *)&own, &length))
		return 3;
	printf("%d\n", ntohs(own.sin_port));
	fflush(stdout);
	for (;;) {
		int connection = accept(listener, NULL, NULL);
		SSL *session = SSL_new(context);

		SSL_set_fd(session, connection);
		if (SSL_accept(session) == 1) {
			size_t read = read_request(session, by_ex, request, sizeof(request) - 1);

			request[read] = 0;
			if (read) {
				refuse(request);
				SSL_write(session, answer, sizeof(answer) - 1);
			}
		}
		SSL_free(session);
		close(connection);
	}
}
