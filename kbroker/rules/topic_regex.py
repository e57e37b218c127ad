"""Patterns of topic names in the syntax of RE2 (KIP-848), matched by RE2 itself.

RE2 does not backtrack: matching a name costs at most its length times the size of the pattern's program. RE2 refuses a
pattern whose program needs more memory than MAX_MEMORY.
"""

from __future__ import annotations

from kbroker.errors import ErrorCode, ProtocolError

MAX_PATTERN_LENGTH = 4096
MAX_MEMORY = 1 << 20
"""Bytes that one pattern may take, for its program and the states that matching caches."""


class TopicRegex:
    """A pattern that has to match whole topic names."""

    def __init__(self, pattern: str):
        """Raises ProtocolError (INVALID_REGULAR_EXPRESSION) if the pattern is not valid or is too large."""
        import re2

        options = re2.Options()
        options.max_mem = MAX_MEMORY
        options.log_errors = False
        options.never_capture = True
        try:
            if len(pattern) > MAX_PATTERN_LENGTH:
                raise re2.error(b"expression is too long")
            self._compiled = re2.compile(pattern, options)
        except re2.error as error:
            message = f"SubscribedTopicRegex `{pattern}` is not a valid regular expression: {error.args[0].decode()}."
            raise ProtocolError(ErrorCode.INVALID_REGULAR_EXPRESSION, message) from None
        finally:
            re2.purge()  # the module would keep the last 128 patterns

    def matches(self, name: str) -> bool:
        """Whether the pattern matches the whole `name`."""
        return self._compiled.fullmatch(name) is not None


def check_regex(pattern: str) -> None:
    """Raise ProtocolError (INVALID_REGULAR_EXPRESSION) if the pattern is not valid or is too large."""
    TopicRegex(pattern)
