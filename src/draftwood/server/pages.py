"""The files of the page, read once. What is not in the folder does not exist, whatever the path says."""

from mimetypes import guess_type
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response

from draftwood.server.errors import ApiError

FOLDER = Path(__file__).parent / "page"
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
}
TYPES = {".js": "text/javascript", ".css": "text/css", ".html": "text/html", ".svg": "image/svg+xml"}


def load(folder: Path = FOLDER) -> dict[str, tuple[bytes, str]]:
    """Path inside the folder -> contents and type."""
    found: dict[str, tuple[bytes, str]] = {}
    for path in sorted(folder.rglob("*")) if folder.is_dir() else ():
        if path.is_file() and not path.name.startswith("."):
            kind = TYPES.get(path.suffix) or guess_type(path.name)[0] or "application/octet-stream"
            text = kind.startswith("text/") or kind == "image/svg+xml"
            found[path.relative_to(folder).as_posix()] = path.read_bytes(), kind + ("; charset=utf-8" if text else "")
    return found


class Pages:
    """Endpoints for `/` and `/page/...`."""

    def __init__(self, folder: Path = FOLDER) -> None:
        self.files = load(folder)

    async def index(self, request: Request) -> Response:
        return self._file("index.html")

    async def file(self, request: Request) -> Response:
        return self._file(request.path_params["path"])

    def _file(self, name: str) -> Response:
        if name not in self.files:
            raise ApiError(404, "no such file", code="not_found")
        body, kind = self.files[name]
        return Response(body, headers={**HEADERS, "content-type": kind})
