"""How a bucket URL and its options become an obstore client.

Credentials come from the environment as obstore documents (`AWS_*`, `GOOGLE_*`,
`AZURE_*`), or from options; never from the URL, which is shown in messages.

Options, all of them optional:

    endpoint, region, access_key_id, …  obstore's configuration of the store
    allow_http, timeout, proxy_url, …   obstore's client options
    max_retries, retry_timeout          how often and for how long to retry
    path_style=True                     S3: the bucket goes into the path, not the host
    credential_provider                 a callable; must pickle if the store is to travel
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from obstore.exceptions import BaseError
from obstore.store import AzureStore, GCSStore, S3Store

from penstock.errors import ErrorCode, SettingsError, UserError
from penstock.state.storage.object_path import check_path

if TYPE_CHECKING:
    from obstore.store import ObjectStore as Client

_URL = re.compile(r"(s3|gs|az)://([A-Za-z0-9][A-Za-z0-9._$-]*)((?:/[^?#@]*)?)", re.DOTALL)

_CLIENT_OPTIONS = frozenset(
    {
        "allow_http",
        "allow_invalid_certificates",
        "connect_timeout",
        "default_headers",
        "http1_only",
        "http2_keep_alive_interval",
        "http2_keep_alive_timeout",
        "http2_keep_alive_while_idle",
        "http2_only",
        "pool_idle_timeout",
        "pool_max_idle_per_host",
        "proxy_ca_certificate",
        "proxy_excludes",
        "proxy_url",
        "randomize_addresses",
        "read_timeout",
        "root_certificate",
        "timeout",
        "user_agent",
    }
)
_RETRY_OPTIONS = frozenset({"max_retries", "retry_timeout"})

# obstore's default of 30 seconds for a whole request is too short for one big upload.
_DEFAULT_TIMEOUT = timedelta(minutes=5)


@dataclass(frozen=True, slots=True)
class BucketUrl:
    """A place in a bucket (S3, Google) or container (Azure)."""

    scheme: str
    bucket: str
    prefix: str
    """Where the store's paths begin inside the bucket; '' is its root."""

    def __str__(self) -> str:
        return f"{self.scheme}://{self.bucket}" + (f"/{self.prefix}" if self.prefix else "")


def parse_bucket_url(url: str) -> BucketUrl:
    """Take `s3://bucket/prefix` apart; a URL with anything else in it is refused.

    The refused URL is not repeated in the message: it may hold a password.
    """
    match = _URL.fullmatch(url)
    if match is None:
        scheme = url.partition(":")[0]
        raise UserError(
            f"this {scheme}: URL is not of the form {scheme}://<bucket>/<prefix>: pass "
            "credentials by environment or options, not in the URL, and no '?' or '#' part",
            code=ErrorCode.INVALID_URL,
        )
    prefix = match[3].strip("/")
    return BucketUrl(match[1], match[2], check_path(prefix) if prefix else "")


def make_client(place: BucketUrl, options: Mapping[str, Any]) -> "Client":
    """Build the client. Nothing is sent yet, so a wrong bucket or key is not noticed here."""
    config = dict(options)
    arguments: dict[str, Any] = {
        "prefix": place.prefix or None,
        "client_options": {"timeout": _DEFAULT_TIMEOUT} | _take(config, _CLIENT_OPTIONS),
        "retry_config": _take(config, _RETRY_OPTIONS),
        "credential_provider": config.pop("credential_provider", None),
    }
    arguments["config"] = _s3_config(config) if place.scheme == "s3" else config
    try:
        match place.scheme:
            case "s3":
                return S3Store(place.bucket, **arguments)
            case "gs":
                return GCSStore(place.bucket, **arguments)
            case _:
                return AzureStore(place.bucket, **arguments)
    except (BaseError, TypeError, ValueError) as error:
        reason = str(error).partition("\n")[0]
        raise SettingsError(
            f"cannot open {place} with the options {sorted(options)}: {reason}. Correct the "
            "option or the environment variable of that name",
            url=str(place),
        ) from error


def _s3_config(config: dict[str, Any]) -> dict[str, Any]:
    """Add what Penstock wants of S3 to the user's settings."""
    if "path_style" in config:
        config["virtual_hosted_style_request"] = not config.pop("path_style")
    # Not every S3-compatible store has the bulk call that obstore would use for one object.
    config.setdefault("disable_bulk_delete", True)
    return config


def _take(options: dict[str, Any], names: frozenset[str]) -> dict[str, Any]:
    """Remove and return the options of these names."""
    return {name: options.pop(name) for name in names & options.keys()}
