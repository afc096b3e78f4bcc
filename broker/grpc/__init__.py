"""RocketMQ 5's gRPC service. Needs the extra ``grpc``, and a build that found nghttp2."""


def what_is_missing(error: ImportError) -> str:
    """Returns why the service could not be imported, and what to do."""
    if error.name == "broker.grpc._http2":
        return (
            "the gRPC service was left out when this package was built, without nghttp2's header:"
            " install libnghttp2-dev and build it again"
        )
    return f"the gRPC service needs {error.name}: pip install 'rocketmq-pystore[grpc]'"
