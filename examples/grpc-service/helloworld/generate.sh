#!/bin/sh
# Generates the Go code of helloworld.proto with pinned tools, none of which enters go.mod:
# protoc from the Python package grpcio-tools, and the two Go plugins.
set -eu
cd "$(dirname "$0")"

tools=$(mktemp -d)
trap 'rm -rf "$tools"' EXIT

python3 -m venv "$tools/venv"
"$tools/venv/bin/pip" install --quiet --disable-pip-version-check grpcio-tools==1.85.1
GOBIN="$tools" go install google.golang.org/protobuf/cmd/protoc-gen-go@v1.36.12
GOBIN="$tools" go install google.golang.org/grpc/cmd/protoc-gen-go-grpc@v1.6.2

PATH="$tools:$PATH" "$tools/venv/bin/python" -m grpc_tools.protoc -I . \
	--go_out=. --go_opt=paths=source_relative \
	--go-grpc_out=. --go-grpc_opt=paths=source_relative \
	helloworld.proto
