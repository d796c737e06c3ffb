"""Errors that a caller, a file or the world can cause; our own bugs are asserts instead."""


class KvfabricError(Exception):
    """Any expected failure; ``app`` turns it into one message and an exit code."""

    exit_code = 2


class ConfigError(KvfabricError):
    """Bad input: says what was read, where, and what to write instead."""

    def __init__(self, what: str, *, where: str = "", hint: str = "") -> None:
        """Join ``where: what (hint)`` into one line.

        Args:
            what: what was read and why it cannot be used.
            where: file and place in it, such as ``plan.yaml: fabric.nic_rate``.
            hint: what to write instead.
        """
        self.what, self.where, self.hint = what, where, hint
        text = f"{where}: {what}" if where else what
        separator = " " if text.endswith(("?", ".")) else ". "
        super().__init__(f"{text}{separator}{hint}" if hint else text)


class CapacityError(KvfabricError):
    """A size that can never fit: a finding about the plan, not a typing error."""

    exit_code = 1


class UnsupportedError(ConfigError):
    """Valid input that this version does not model; names the key or option."""


class IllegalTransitionError(KvfabricError):
    """A state machine was asked for a step its table does not have; nothing was changed."""

    exit_code = 3
