"""Secrets, which a report must not show: known by the names of values, or by their shapes.

People attach `xmp facts` to public bug reports. It selects the variables to report by patterns
(``TPU_*``), which the name of a secret may match, and flags and addresses may contain a secret.
"""

from __future__ import annotations

import re

__all__ = ["HIDDEN", "is_flag", "is_secret", "shown", "without_secrets"]

HIDDEN = "(hidden)"

PARTS = re.compile(
    r"TOKEN(?!IZ)|SECRET|PASSW|PASSPHRASE|CREDENTIAL|API_?KEY|(ACCESS|PRIVATE|ACCOUNT)_?KEY"
)
"""Parts that mark a name as a secret's wherever they stand, within a longer word too."""
WORDS = {
    *("KEY", "KEYS", "AUTH", "OAUTH", "PASS", "PWD", "PW", "CREDS", "COOKIE", "BEARER", "JWT"),
    *("DSN", "SAS", "WEBHOOK", "AUTHORIZATION", "SIGNATURE", "APIKEY", "PEM"),
}
"""Words that mark a name as a secret's."""

USER = re.compile(r"(?<=//)[^/\s]*@|(?<![^\s,;|/@=\"'])[^\s,;|/@=\"':]+:[^\s,;|/]+@")
"""``user:password@`` in an address."""
VALUE = re.compile(r"""("[^"]*"|'[^']*'|[^\s"'&]+)""")
NAMED = (
    # --api_key=…, ?token=…, "secret": "…"
    (re.compile(r"""(?<![\w.-])([\w.-]+)(?:["']?\s*=\s*|["']\s*:\s*)"""), VALUE),
    # --token …
    (re.compile(r"(?<!\S)(--?[A-Za-z][\w.-]*)\s+(?!-)"), VALUE),
    # TOKEN: '…', a line of YAML
    (re.compile(r"""^\s*["']?([\w.-]+)["']?\s*:\s+""", re.MULTILINE), re.compile(".+")),
)
"""The forms of a name, and of the value that follows it."""
SHAPES = re.compile(
    r"gh[a-z]_[A-Za-z0-9]{16,}|github_pat_\w+|glpat-[\w-]+|hf_[A-Za-z0-9]{16,}"  # GitHub and others
    r"|sk-[\w-]{16,}|xox[a-z]-[\w-]+|(AKIA|ASIA)[0-9A-Z]{12,}|AIza[\w-]{30,}|ya29\.[\w-]+"
    r"|eyJ[\w-]{8,}\.[\w-]+\.?[\w-]*"  # a JSON web token begins with {" in base64
    r"|(?<=Bearer )\S+|(?<=Basic )\S+"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----[\s\S]*"
)


def is_secret(name: str) -> bool:
    """Return whether a variable or flag of this name holds a secret."""
    plain = re.sub(r"\W", "_", name.upper())
    return bool(PARTS.search(plain)) or not WORDS.isdisjoint(plain.split("_"))


def is_flag(word: str) -> bool:
    """Return whether a word of a command line is a flag whose value is the next word."""
    return bool(re.fullmatch(r"--?[A-Za-z][\w.-]*", word))


def shown(name: str, value: str) -> str:
    """Return the value as a report may show it."""
    return HIDDEN if value and is_secret(name) else without_secrets(value)


def without_secrets(text: str) -> str:
    """Return ``text`` without passwords in addresses, values of secret flags, and known keys."""
    text = SHAPES.sub(HIDDEN, USER.sub(f"{HIDDEN}@", text))
    for name, value in NAMED:
        text = _without_named(name, value, text)
    return text


def _without_named(name: re.Pattern[str], value: re.Pattern[str], text: str) -> str:
    kept, at = [], 0
    for found in name.finditer(text):
        secret = value.match(text, found.end()) if is_secret(found[1]) else None
        if secret and found.start() >= at:
            kept += [text[at : found.end()], HIDDEN]
            at = secret.end()
    return "".join([*kept, text[at:]])
