# The image of task-proxy: one static binary, the CA roots, nothing else: no shell, no package manager, nothing to write to.
# Needs only what is in this repository. Another architecture is cross-compiled, never emulated; `make image` builds it.
ARG GO_IMAGE=docker.io/library/golang:1.26.8

FROM --platform=$BUILDPLATFORM ${GO_IMAGE} AS build
WORKDIR /src
# Modules are a layer of their own, so that a change of the code does not fetch them again.
COPY go.mod go.sum ./
RUN go mod download
COPY . .
ARG TARGETOS
ARG TARGETARCH
ARG VERSION=dev
RUN CGO_ENABLED=0 GOOS=${TARGETOS} GOARCH=${TARGETARCH} \
    go build -trimpath -ldflags "-s -w -X main.version=${VERSION}" -o /image/task-proxy ./cmd/task-proxy
# The roots that the process trusts towards the cluster, besides those of --yt-ca-file.
RUN mkdir -p /image/etc/ssl/certs && cp /etc/ssl/certs/ca-certificates.crt /image/etc/ssl/certs/ && cp LICENSE /image/ && .ci/notices >/image/NOTICES

FROM scratch
ARG VERSION=dev
ARG REVISION=
ARG SOURCE=
LABEL org.opencontainers.image.title="task-proxy" \
      org.opencontainers.image.description="Gives web services in the jobs of a YTsaurus cluster stable addresses and carries requests to them" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.source="${SOURCE}"
COPY --from=build /image /
# By number, so that runAsNonRoot can be checked. Nothing belongs to this user: any other does as well.
USER 65532:65532
# 8080: callers; 9102: health and metrics. The debug listener (9103) stays on loopback.
EXPOSE 8080 9102
ENTRYPOINT ["/task-proxy"]
