# The one program, for a cluster. Build it with `docker build -t YOUR-REGISTRY/rulecast:0.1.0 .`
FROM rust:1.95-bookworm AS build
WORKDIR /src
COPY . .
RUN cargo build --release --locked -p rulecast && strip target/release/rulecast

FROM debian:bookworm-slim
COPY --from=build /src/target/release/rulecast /usr/local/bin/rulecast
USER 65532:65532
ENTRYPOINT ["rulecast"]
