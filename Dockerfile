# walpost as an image: built with the tools that librdkafka and OpenSSL need, shipped without them.
FROM rust:1.88-slim-bookworm AS build
RUN apt-get update \
 && apt-get install -y --no-install-recommends cmake make g++ perl pkg-config \
 && rm -rf /var/lib/apt/lists/*
WORKDIR /build
COPY Cargo.toml Cargo.lock ./
COPY src src
COPY sql sql
RUN cargo build --release --locked --bin walpost

FROM debian:bookworm-slim
# Certificates of public authorities, for sslrootcert=system and brokers with public certificates.
RUN apt-get update \
 && apt-get install -y --no-install-recommends ca-certificates \
 && rm -rf /var/lib/apt/lists/* \
 && useradd --system --uid 10001 --no-create-home --shell /usr/sbin/nologin walpost
COPY --from=build /build/target/release/walpost /usr/local/bin/walpost
USER 10001
# The admin server binds to loopback unless told otherwise: set WALPOST_HTTP=0.0.0.0:9464 to reach it from outside.
EXPOSE 9464
STOPSIGNAL SIGTERM
ENTRYPOINT ["/usr/local/bin/walpost"]
CMD ["run"]
