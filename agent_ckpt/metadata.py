"""What of a run's config and metadata becomes a checkpoint's metadata: secrets in it are masked.

LangGraph copies every text and number of `configurable` and of the config's metadata into the
metadata of each checkpoint, and people pass API keys that way. Only what is stored is masked: the
config that the nodes see is never changed. The rule is told in docs/credentials.md.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Any

from pydantic import SecretBytes, SecretStr

from agent_ckpt.filters import whole_metadata
from agent_ckpt.options import Options
from agent_ckpt.restore_rules import CALL_KEYS

MASK = "***"

_LANGGRAPHS = frozenset(
    "thread_id checkpoint_ns checkpoint_id checkpoint_map run_id assistant_id graph_id source step parents "
    "counters_since_delta_snapshot".split()
)
"""LangGraph's keys: no pattern of a user's masks them, and nothing is looked for inside."""
_SECRET_WORDS = frozenset(
    "api_keys apikey apikeys auth_header authorization bearer cookie cookies credential credentials jwt passphrase "
    "passwd password passwords private_keys proxy_authorization pwd secret secrets session_cookie set_cookie token "
    "tokens accesstoken authtoken refreshtoken clientsecret privatekey secretkey".split()
)
_SECRET_ENDINGS = ("_key", "_token", "_secret", "_password")
_OPENS_NOTHING = frozenset(
    "cache_key custom_key dedupe_key foreign_key group_key idempotency_key index_key lookup_key object_key "
    "partition_key primary_key public_key routing_key row_key sort_key bos_token eos_token next_page_token pad_token "
    "page_token stop_token".split()
)
"""Names with such an ending that are known to be no secrets; `custom_key` is one of LangGraph's conformance suite."""
_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_JOINT = re.compile(r"[\s\-.:/_]+")


def metadata_of(config: Mapping[str, Any], metadata: Mapping[str, Any], options: Options) -> dict[str, Any]:
    """The metadata to store: what it was given and what the config adds, without our own keys, secrets masked."""
    merged = whole_metadata(config, metadata)
    for key in CALL_KEYS:
        if key in (config.get("configurable") or {}):
            merged.pop(key, None)
    if not options.mask_secrets:
        return merged
    return {
        key: value if key in _LANGGRAPHS else _searched(value, is_secret(key, options.mask_keys), options.mask_keys)
        for key, value in merged.items()
    }


def _searched(value: Any, secret: bool, patterns: tuple[str, ...]) -> Any:
    try:
        return _masked(value, secret, patterns)
    except RecursionError:
        # It holds itself, or nearly: what can't be searched is not stored unsearched.
        return MASK


@lru_cache(maxsize=2048)
def is_secret(key: Any, patterns: tuple[str, ...] = ()) -> bool:
    """Whether text under this key is masked.

    Args:
        key: a key of the metadata; one that isn't text is never secret.
        patterns: the option `mask_keys`; one that begins with "!" names keys that stay in clear.
    """
    if not isinstance(key, str):
        return False
    plain = _plain(key)
    if any(pattern[0] == "!" and fnmatchcase(plain, _plain(pattern[1:])) for pattern in patterns):
        return False
    if plain in _SECRET_WORDS or (plain.endswith(_SECRET_ENDINGS) and plain not in _OPENS_NOTHING):
        return True
    if plain.startswith("langgraph_"):
        return False
    return any(pattern[0] != "!" and fnmatchcase(plain, _plain(pattern)) for pattern in patterns)


def _plain(key: str) -> str:
    """`openaiApiKey`, `OpenAI-API-Key` and `OPENAI_API_KEY` are spellings of one name's words."""
    return _JOINT.sub("_", _HUMP.sub("_", key)).lower()


def _masked(value: Any, secret: bool, patterns: tuple[str, ...]) -> Any:
    """The value with its secret texts masked; the same object where it has none."""
    if isinstance(value, (SecretStr, SecretBytes)):
        return MASK
    if isinstance(value, (str, bytes, bytearray)):
        return MASK if secret else value
    if isinstance(value, Mapping):
        found = {key: _masked(part, secret or is_secret(key, patterns), patterns) for key, part in value.items()}
        return value if all(found[key] is part for key, part in value.items()) else found
    if isinstance(value, (list, tuple, set, frozenset)):
        parts = [_masked(part, secret, patterns) for part in value]
        if all(new is old for new, old in zip(parts, value, strict=True)):
            return value
        return parts if isinstance(value, list) else tuple(parts) if isinstance(value, tuple) else set(parts)
    return value
