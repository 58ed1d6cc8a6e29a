"""The demo's prompt: a deterministic English text of any length, one byte per token."""

from __future__ import annotations

_OPENING = (
    "You are the librarian of a large memory. Every reader brings a long document and asks a "
    "short question about it. Reading a document is expensive, remembering one is cheap, and "
    "many readers bring the same document. Answer the question at the end.\n\n"
)
_SUBJECTS = ("a block", "the pool", "an engine", "the index", "a reader", "the leader", "a page")
_VERBS = ("keeps", "finds", "maps", "publishes", "forgets", "copies", "follows")
_OBJECTS = (
    "the keys of its tokens",
    "what another host has written",
    "the longest present prefix",
    "one contiguous extent",
    "a name that is complete or absent",
    "the oldest entry first",
    "nothing that it can't check",
)


def prompt_text(characters: int) -> str:
    """ASCII text of exactly ``characters`` characters; a longer one begins with a shorter."""
    parts = [_OPENING]
    length, line = len(_OPENING), 0
    while length < characters:
        # The numbers keep the lines apart even where the words come back.
        subject = _SUBJECTS[line % 7]
        verb = _VERBS[(line // 7 + 2 * line) % 7]
        thing = _OBJECTS[(line // 49 + 3 * line) % 7]
        sentence = f"{line + 1}. When {subject} {verb} {thing}, the answer is {line * 37 % 101}.\n"
        parts.append(sentence)
        length += len(sentence)
        line += 1
    return "".join(parts)[:characters]


def prompt_bytes(tokens: int) -> bytes:
    """The prompt as bytes; each is a token of the demo's model."""
    return prompt_text(tokens).encode("ascii")
