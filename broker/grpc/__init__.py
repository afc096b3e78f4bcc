"""RocketMQ 5's gRPC service. Needs the extra ``grpc``."""
