"""A model hub on loopback that huggingface_hub uploads to and downloads from.

It implements the part of the HTTP API of huggingface.co that `HfApi.create_repo`, `create_branch`,
`create_commit` with LFS uploads and `snapshot_download` use. Names of organizations and tokens:
WRITER may write to repositories of TEAM; READER may read only.
"""

import base64
import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit

import yaml

TEAM, WRITER, READER = "team", "hf_writer0123456789", "hf_reader0123456789"
SUFFIXES = (".safetensors", ".onnx", ".bin")  # stored with LFS
NAME = r"(?P<name>[^/]+/[^/]+)"


@dataclass
class Repository:
    """Commits by branch; a commit is its digest and its files."""

    branches: dict[str, tuple[str, dict[str, bytes]]] = field(
        default_factory=lambda: {"main": ("0" * 40, {".gitattributes": b"*.bin filter=lfs\n"})}
    )
    commits: int = 0
    private: bool = False

    def at(self, revision: str) -> tuple[str, dict[str, bytes]]:
        """Return digest and files of a branch or commit."""
        found = [commit for commit in self.branches.values() if commit[0] == revision]
        return found[0] if found else self.branches[revision]


@dataclass
class Hub:
    """The state of the server; `requests` are the methods and paths of all requests."""

    address: str = ""
    repositories: dict[str, Repository] = field(default_factory=dict)
    objects: dict[str, bytes] = field(default_factory=dict)
    requests: list[str] = field(default_factory=list)
    rejects: str | None = None  # a pattern of paths that answer with status 400

    def files(self, name: str, revision: str = "main") -> dict[str, bytes]:
        """Return the files of a repository."""
        return self.repositories[name].at(revision)[1]


class Handler(BaseHTTPRequestHandler):
    """Answers a request from the state of the hub."""

    protocol_version = "HTTP/1.1"
    hub: Hub

    def log_message(self, *_: object) -> None:
        """Print nothing."""

    def handle_request(self) -> None:
        """Read the request and call the method of its route."""
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        url = urlsplit(self.path)
        self.hub.requests.append(f"{self.command} {self.path}")
        if self.hub.rejects and re.search(self.hub.rejects, self.path):
            self.answer({}, HTTPStatus.BAD_REQUEST)
            return
        for method, pattern, route in ROUTES:
            matched = re.fullmatch(pattern, url.path)
            if matched and self.command in method.split():
                words = {key: unquote(value) for key, value in matched.groupdict().items()}
                getattr(self, route)(body, parse_qs(url.query), **words)
                return
        self.answer({}, HTTPStatus.NOT_FOUND)

    do_GET = do_HEAD = do_POST = do_PUT = handle_request

    def answer(self, content: object, status: int = HTTPStatus.OK, **headers: str) -> None:
        """Send JSON, or bytes."""
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        for name, value in {"Content-Length": str(len(data)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def writer(self, organization: str) -> bool:
        """Whether the token may write to the organization; if not, answer."""
        token = self.headers.get("Authorization", "").removeprefix("Bearer ")
        if token not in (WRITER, READER):
            message = "Invalid credentials in Authorization header"
            self.answer({"error": message}, HTTPStatus.UNAUTHORIZED, X_Error_Message=message)
            return False
        if token == READER or organization != TEAM:
            self.answer({"error": "no write access"}, HTTPStatus.FORBIDDEN)
            return False
        return True

    def root(self, *_: object) -> None:
        """The page of the hub."""
        self.answer({})

    def create(self, body: bytes, _: object) -> None:
        """Create a repository."""
        fields = json.loads(body)
        if not self.writer(fields["organization"]):
            return
        name = f"{fields['organization']}/{fields['name']}"
        exists = name in self.hub.repositories
        private = fields.get("visibility") == "private"
        self.hub.repositories.setdefault(name, Repository(private=private))
        self.answer({"url": f"{self.hub.address}/{name}"}, 409 if exists else 200)

    def branch(self, _: bytes, __: object, name: str, revision: str) -> None:
        """Create a branch."""
        if self.writer(name.partition("/")[0]):
            branches = self.hub.repositories[name].branches
            exists = revision in branches
            branches.setdefault(revision, branches["main"])
            self.answer({}, 409 if exists else 200)

    def information(self, _: bytes, __: object, name: str, revision: str = "main") -> None:
        """Return the commit of a branch."""
        if name not in self.hub.repositories:
            self.answer({}, HTTPStatus.NOT_FOUND, X_Error_Code="RepoNotFound")
            return
        if revision not in self.hub.repositories[name].branches:
            self.answer({}, HTTPStatus.NOT_FOUND, X_Error_Code="RevisionNotFound")
            return
        digest, files = self.hub.repositories[name].at(revision)
        siblings = [{"rfilename": path} for path in files]
        self.answer({"id": name, "sha": digest, "siblings": siblings})

    def tree(self, _: bytes, __: object, name: str, revision: str) -> None:
        """Return the files of a revision."""
        files = self.hub.files(name, revision)
        entries = [
            {"type": "file", "path": path, "size": len(content), "oid": blob_id(content)}
            for path, content in files.items()
        ]
        self.answer(entries)

    def validate(self, body: bytes, _: object) -> None:
        """Check the front matter of a model card."""
        content = json.loads(body)["content"]
        fields = yaml.safe_load(content.split("---\n")[1])
        known = isinstance(fields, dict) and isinstance(fields.get("tags"), list)
        self.answer({"errors": [], "warnings": []}, 200 if known else 400)

    def preupload(self, body: bytes, _: object, name: str, revision: str) -> None:
        """Return which files are uploaded with LFS."""
        del revision
        if self.writer(name.partition("/")[0]):
            entries = [
                {
                    "path": file["path"],
                    "uploadMode": "lfs" if file["path"].endswith(SUFFIXES) else "regular",
                    "shouldIgnore": False,
                }
                for file in json.loads(body)["files"]
            ]
            self.answer({"files": entries})

    def batch(self, body: bytes, _: object, name: str) -> None:
        """Return where to upload the objects that are new."""
        if self.writer(name.partition("/")[0]):
            entries = []
            for entry in json.loads(body)["objects"]:
                href = {"href": f"{self.hub.address}/lfs/{entry['oid']}?signature=secret"}
                new = entry["oid"] not in self.hub.objects
                entries.append(entry | ({"actions": {"upload": href}} if new else {}))
            self.answer({"transfer": "basic", "objects": entries})

    def store(self, body: bytes, _: object, digest: str) -> None:
        """Store an object."""
        right = hashlib.sha256(body).hexdigest() == digest
        if right:
            self.hub.objects[digest] = body
        self.answer({}, 200 if right else 422)

    def commit(self, body: bytes, _: object, name: str, revision: str) -> None:
        """Change files of a branch."""
        if not self.writer(name.partition("/")[0]):
            return
        repository = self.hub.repositories[name]
        files = dict(repository.branches[revision][1])
        for line in body.splitlines():
            entry = json.loads(line)
            value = entry["value"]
            match entry["key"]:
                case "file":
                    files[value["path"]] = base64.b64decode(value["content"])
                case "lfsFile":
                    files[value["path"]] = self.hub.objects[value["oid"]]
                case "deletedFile":
                    del files[value["path"]]
        digest = hashlib.sha1(body, usedforsecurity=False).hexdigest()
        repository.branches[revision] = (digest, files)
        repository.commits += 1
        self.answer(
            {"commitUrl": f"{self.hub.address}/{name}/commit/{digest}", "commitOid": digest}
        )

    def resolve(self, _: bytes, __: object, name: str, revision: str, path: str) -> None:
        """Return a file."""
        digest, files = self.hub.repositories[name].at(revision)
        if path not in files:
            self.answer({}, HTTPStatus.NOT_FOUND, X_Error_Code="EntryNotFound")
            return
        content = files[path]
        self.answer(content, ETag=f'"{blob_id(content)}"', X_Repo_Commit=digest)


ROUTES = (
    ("HEAD GET", "/", "root"),
    ("POST", "/api/repos/create", "create"),
    ("POST", "/api/validate-yaml", "validate"),
    ("POST", f"/api/models/{NAME}/branch/(?P<revision>[^/]+)", "branch"),
    ("POST", f"/api/models/{NAME}/preupload/(?P<revision>[^/]+)", "preupload"),
    ("POST", f"/api/models/{NAME}/commit/(?P<revision>[^/]+)", "commit"),
    ("GET", f"/api/models/{NAME}/tree/(?P<revision>[^/]+)", "tree"),
    ("GET", f"/api/models/{NAME}/revision/(?P<revision>[^/]+)", "information"),
    ("GET", f"/api/models/{NAME}", "information"),
    ("POST", rf"/{NAME}\.git/info/lfs/objects/batch", "batch"),
    ("PUT", "/lfs/(?P<digest>[0-9a-f]+)", "store"),
    ("HEAD GET", f"/{NAME}/resolve/(?P<revision>[^/]+)/(?P<path>.+)", "resolve"),
)


def blob_id(content: bytes) -> str:
    """Return the digest of git for a file."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


@contextmanager
def running_hub() -> Iterator[Hub]:
    """Run the server inside the block."""
    hub = Hub()
    handler = type("HubHandler", (Handler,), {"hub": hub})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        hub.address = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield hub
        server.shutdown()
        thread.join()
