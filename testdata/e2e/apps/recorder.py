"""Answers everything, to everybody, and keeps a list of it, which it tells at /asked."""

import http.server
import os

asked = set()


class Recorder(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def answer(self):
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        text = "\n".join(sorted(asked)) if self.path == "/asked" else "the job's answer"
        asked.add(f"{self.command} {self.path}")
        body = f"<!doctype html><title>a job</title><p>{text}".encode() if self.path != "/asked" else text.encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(body)))
        # What a careless service says to anybody who asks.
        self.send_header("Access-Control-Allow-Origin", self.headers.get("Origin", "*"))
        self.send_header("Access-Control-Allow-Credentials", "true")
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = do_OPTIONS = answer

    def log_message(self, *_):
        pass


http.server.ThreadingHTTPServer(("127.0.0.1", int(os.environ["YT_PORT_0"])), Recorder).serve_forever()
