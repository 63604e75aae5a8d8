/* Begins TLS handshakes and gives them up, as many as each line of its input says; answers with its process id. */
#include <stdio.h>
#include <unistd.h>
#include <openssl/ssl.h>

static void give_up_one(SSL_CTX *context)
{
	SSL *connection = SSL_new(context);

	SSL_set_bio(connection, BIO_new(BIO_s_mem()), BIO_new(BIO_s_mem()));
	SSL_get_error(connection, SSL_connect(connection));
	SSL_free(connection);
}

int main(void)
{
	SSL_CTX *context = SSL_CTX_new(TLS_client_method());
	int times;

	printf("%d\n", getpid());
	fflush(stdout);
	while (scanf("%d", &times) == 1) {
		while (times-- > 0)
			give_up_one(context);
		printf("done\n");
		fflush(stdout);
	}
	return 0;
}
