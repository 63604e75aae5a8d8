"""Asks ext_authz as Envoy does, by Envoy's own published messages: `envoy_client.py PORT SERVICE MODEL`.

A program of its own: the package of Envoy's messages brings copies of others that do not suit this process.
"""

from __future__ import annotations

import json
import sys

import grpc
from envoy.service.auth.v3 import external_auth_pb2, external_auth_pb2_grpc


def main() -> None:
    """Print the answer as JSON."""
    port, service, model = sys.argv[1:]
    request = external_auth_pb2.CheckRequest()
    attributes = request.attributes
    attributes.source.address.socket_address.address = "10.0.0.9"
    attributes.request.time.seconds = 1_700_000_000
    http = attributes.request.http
    http.id, http.method, http.path, http.host, http.protocol = "1", "POST", "/v1/chat", "gw", "HTTP/1.1"
    http.headers["x-otel-bridge-model"] = model
    http.headers["traceparent"] = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    http.body = "{}"
    attributes.context_extensions["service"] = service
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        answer = external_auth_pb2_grpc.AuthorizationStub(channel).Check(request, timeout=10)
    which = answer.WhichOneof("http_response")
    response = getattr(answer, which)
    sys.stdout.write(
        json.dumps(
            {
                "code": answer.status.code,
                "which": which,
                "status": answer.denied_response.status.code,
                "body": answer.denied_response.body,
                "headers": {option.header.key: option.header.value for option in response.headers},
                "append_actions": sorted({option.append_action for option in response.headers}),
            }
        )
    )


if __name__ == "__main__":
    main()
