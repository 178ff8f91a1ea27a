"""As much of the Hugging Face Hub's HTTP interface as huggingface_hub asks for, on this machine, in memory."""

import base64
import hashlib
import json
import re
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

WRITER = "hf_writer"  # a token that may do everything; others may read what is public


def git_hash(content: bytes) -> str:
    return hashlib.sha1(f"blob {len(content)}\0".encode() + content).hexdigest()


class FakeHub(ThreadingHTTPServer):
    """Repositories with branches and commits. Large files go the way of LFS, as on the Hub."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Requests)
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        self.trees: dict[str, dict[str, bytes]] = {}  # by commit
        self.branches: dict[tuple[str, str], str] = {}  # by repository and branch
        self.private: dict[str, bool] = {}
        self.gated: set[str] = set()
        self.blobs: dict[str, bytes] = {}
        self.asked: list[str] = []  # method and path of every request
        self.agents: set[str] = set()
        self.fails: dict[str, int] = {}  # the status to answer with, by a part of the path
        self.lies: dict[str, bytes] = {}  # what is sent in the place of a file

    def put(self, name: str, files: dict[str, bytes], private: bool = False) -> str:
        """What a stranger has pushed by other means."""
        self.private.setdefault(name, private)
        return self.commit(name, "main", files)

    def commit(self, name: str, branch: str, files: dict[str, bytes]) -> str:
        parent = self.branches.get((name, branch), "")
        commit = hashlib.sha1(f"{parent} {sorted(files)} {[*map(hash, files.values())]}".encode()).hexdigest()
        self.trees[commit], self.branches[name, branch] = dict(files), commit
        return commit

    def files(self, name: str, branch: str = "main") -> dict[str, bytes]:
        return self.trees[self.branches[name, branch]]


class Requests(BaseHTTPRequestHandler):
    server: FakeHub
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def answer(self, status: int, value=None, code: str = "", body: bytes | None = None, **headers: str):
        body = json.dumps(value if value is not None else {}).encode() if body is None else body
        self.send_response(status)
        for name, text in {"Content-Length": str(len(body)), **({"X-Error-Code": code} if code else {})}.items():
            self.send_header(name, text)
        for name, text in headers.items():
            self.send_header(name.replace("_", "-"), text)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def handle_any(self):
        hub, path = self.server, unquote(urlsplit(self.path).path)
        hub.asked.append(f"{self.command} {path}")
        hub.agents.add(self.headers.get("User-Agent", ""))
        self.body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if status := next((status for text, status in hub.fails.items() if text in path), None):
            return self.answer(status, {"error": "as the test asked"})
        self.writer = self.headers.get("Authorization") == f"Bearer {WRITER}"
        for pattern, act in (
            (r"/api/repos/create", self.create),
            (r"/api/validate-yaml", self.validate),
            (r"/api/models/([^/]+/[^/]+)(?:/revision/(.+))?", self.describe),
            (r"/api/models/([^/]+/[^/]+)/branch/(.+)", self.branch),
            (r"/api/models/([^/]+/[^/]+)/preupload/(.+)", self.preupload),
            (r"/api/models/([^/]+/[^/]+)/commit/(.+)", self.take),
            (r"/([^/]+/[^/]+)\.git/info/lfs/objects/batch", self.batch),
            (r"/blobs/(\w+)", self.store),
            (r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", self.send),
        ):
            if found := re.fullmatch(pattern, path):
                name = found[1] if found.re.groups else ""
                if "/" in name and not self.visible(name):
                    return self.answer(401, {"error": "Repository not found"}, "RepoNotFound")
                if self.command in ("POST", "PUT") and not self.writer and act not in (self.validate, self.store):
                    return self.answer(401, {"error": "Invalid username or password."})
                return act(*found.groups())
        return self.answer(404, {"error": "not known"})

    do_GET = do_HEAD = do_POST = do_PUT = handle_any

    def visible(self, name: str) -> bool:
        return name in self.server.private and (self.writer or not self.server.private[name])

    def resolved(self, name: str, revision: str | None) -> str | None:
        commit = self.server.branches.get((name, revision or "main"), revision)
        if commit not in self.server.trees:
            self.answer(404, {"error": "Invalid rev id"}, "RevisionNotFound")
            return None
        return commit

    def create(self):
        asked = json.loads(self.body)
        name = f"{asked.get('organization')}/{asked['name']}"
        if name in self.server.private:
            return self.answer(
                409, {"error": "You already created this model repo", "url": f"{self.server.url}/{name}"}
            )
        self.server.private[name] = asked.get("visibility") == "private" or bool(asked.get("private"))
        self.server.commit(name, "main", {".gitattributes": b"*.safetensors filter=lfs\n"})
        return self.answer(200, {"url": f"{self.server.url}/{name}", "name": name})

    def validate(self):
        assert "---\n" in json.loads(self.body)["content"]
        self.answer(200, {"errors": [], "warnings": []})

    def describe(self, name: str, revision: str | None):
        if commit := self.resolved(name, revision):
            files = []
            for path, content in self.server.trees[commit].items():
                about = {"rfilename": path, "size": len(content), "blobId": hashlib.sha1(content).hexdigest()}
                if path.endswith(".safetensors"):
                    digest = hashlib.sha256(content).hexdigest()
                    about["lfs"] = {"sha256": digest, "size": len(content), "pointerSize": 130}
                files.append(about)
            self.answer(200, {"id": name, "sha": commit, "private": self.server.private[name], "siblings": files})

    def branch(self, name: str, branch: str):
        if (name, branch) in self.server.branches:
            return self.answer(409, {"error": "Reference already exists"})
        self.server.branches[name, branch] = self.server.branches[name, "main"]
        return self.answer(200, {})

    def preupload(self, name: str, branch: str):
        files = []
        for path in (file["path"] for file in json.loads(self.body)["files"]):
            large, there = path.endswith(".safetensors"), self.server.files(name, branch).get(path)
            oid = None if there is None else hashlib.sha256(there).hexdigest() if large else git_hash(there)
            mode = "lfs" if large else "regular"
            files.append({"path": path, "uploadMode": mode, "shouldIgnore": False, "oid": oid})
        self.answer(200, {"files": files})

    def batch(self, _: str):
        objects = []
        for one in json.loads(self.body)["objects"]:
            there = one["oid"] in self.server.blobs
            actions = {} if there else {"actions": {"upload": {"href": f"{self.server.url}/blobs/{one['oid']}"}}}
            objects.append({"oid": one["oid"], "size": one["size"], **actions})
        self.answer(200, {"transfer": "basic", "objects": objects})

    def store(self, oid: str):
        assert hashlib.sha256(self.body).hexdigest() == oid
        self.server.blobs[oid] = self.body
        self.answer(200)

    def take(self, name: str, branch: str):
        files = dict(self.server.files(name, branch))
        for line in self.body.splitlines():
            kind, value = json.loads(line).values()
            if kind == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif kind == "lfsFile":
                files[value["path"]] = self.server.blobs[value["oid"]]
            elif kind == "deletedFile":
                del files[value["path"]]
        commit = self.server.commit(name, branch, files)
        self.answer(200, {"commitUrl": f"{self.server.url}/{name}/commit/{commit}", "commitOid": commit})

    def send(self, name: str, revision: str, path: str):
        if name in self.server.gated and not self.writer:
            return self.answer(403, {"error": "Access to model is restricted"}, "GatedRepo")
        commit = self.resolved(name, revision)
        if commit is None:
            return None
        content = self.server.trees[commit].get(path)
        if content is None:
            return self.answer(404, {"error": "Entry not found"}, "EntryNotFound")
        content = self.server.lies.get(path, content)
        etag = f'"{hashlib.sha1(content).hexdigest()}"'
        return self.answer(200, body=content, ETag=etag, X_Repo_Commit=commit)


@contextmanager
def running_hub():
    """A hub that listens on the loopback interface until it is left."""
    hub = FakeHub()
    thread = threading.Thread(target=hub.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        hub.shutdown()
        hub.server_close()
        thread.join()


def point_at(monkeypatch, url):
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "ENDPOINT", url)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", url + "/{repo_id}/resolve/{revision}/{filename}")
