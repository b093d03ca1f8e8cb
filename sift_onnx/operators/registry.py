"""Tables of what is known about operators: axis rules, feature maps, kernels."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Generic, TypeVar

from sift_onnx.errors import UsageError
from sift_onnx.operators.domains import canonical_domain
from sift_onnx.operators.labels import qualified_operator

__all__ = ["Registry", "TakenError"]

_Entry = TypeVar("_Entry")
_Key = tuple[str, str]


class TakenError(UsageError):
    """An operator has an entry already; ``operator`` is its name with its domain."""

    def __init__(self, operator: str, what: str) -> None:
        super().__init__(f"{operator} has {what} already; replace=True replaces it")
        self.operator = operator


class Registry(Generic[_Entry]):
    """Entries by operator: domain, operator type, and the first version that an entry holds for.

    ``ai.onnx`` and the empty domain are the same. An operator has one entry for a version: a second one is an error,
    unless it is said to replace the first.
    """

    def __init__(self, what: str, built_in: str = "") -> None:
        """An empty registry.

        Args:
            what: what an entry is, for messages.
            built_in: a module that registers entries when it is imported. It is imported before anything is added or
                looked up, so that no entry of a user or a plug-in can come before those of this package.
        """
        self._what = what
        self._built_in = built_in
        self._entries: dict[_Key, dict[int, _Entry]] = {}
        self._only_new = False

    def add(self, op: str, entry: _Entry, *, domain: str | None = "", since: int = 1, replace: bool = False) -> None:
        """Register an entry.

        Args:
            op: the operator type.
            entry: what is known about the operator.
            domain: of the operator.
            since: the first version that ``entry`` holds for; it holds up to the next entry's.
            replace: whether it may take the place of another entry.

        Raises:
            TakenError: there is another entry, and it may not be replaced.
        """
        self._load()
        versions = self._entries.setdefault((canonical_domain(domain), op), {})
        if since in versions and versions[since] is not entry and (self._only_new or not replace):
            raise TakenError(qualified_operator(op, domain), self._what)
        versions[since] = entry

    def register(self, *ops: str, domain: str = "", replace: bool = False) -> Callable[[_Entry], _Entry]:
        """Decorator: what is decorated is the entry of ``ops``; see :meth:`add`."""

        def add_all(entry: _Entry) -> _Entry:
            for op in ops:
                self.add(op, entry, domain=domain, replace=replace)
            return entry

        return add_all

    def add_table(self, table: Mapping[str, _Entry], domain: str = "") -> None:
        """Register the entries of a table by operator type."""
        for op, entry in table.items():
            self.add(op, entry, domain=domain)

    def find(self, op: str, domain: str | None = "", version: int | None = None) -> _Entry | None:
        """The entry of an operator, or None.

        Args:
            op: the operator type.
            domain: its domain.
            version: the version of the operator; without it, the newest entry is taken.
        """
        versions = self.versions(op, domain)
        newest = max((since for since in versions if version is None or since <= version), default=None)
        return None if newest is None else versions[newest]

    def versions(self, op: str, domain: str | None = "") -> Mapping[int, _Entry]:
        """The entries of an operator by the first version that each holds for."""
        self._load()
        return self._entries.get((canonical_domain(domain), op), {})

    def items(self) -> Iterator[tuple[str, str, int, _Entry]]:
        """Domain, operator type, version and entry of all entries, in this order."""
        self._load()
        for (domain, op), versions in sorted(self._entries.items()):
            for since in sorted(versions):
                yield domain, op, since, versions[since]

    @contextmanager
    def only_new(self) -> Iterator[None]:
        """Within it no entry can be replaced; if it ends with an error, all that was added is removed again."""
        before = self.snapshot()
        self._only_new = True
        try:
            yield
        except Exception:
            self.restore(before)
            raise
        finally:
            self._only_new = False

    def snapshot(self) -> dict[_Key, dict[int, _Entry]]:
        """All entries, for :meth:`restore`."""
        self._load()
        return {key: dict(versions) for key, versions in self._entries.items()}

    def restore(self, entries: Mapping[_Key, Mapping[int, _Entry]]) -> None:
        """Go back to the entries of a :meth:`snapshot`."""
        self._entries = {key: dict(versions) for key, versions in entries.items()}

    def _load(self) -> None:
        # While that module is being imported, this does nothing; other threads wait for its end.
        if self._built_in:
            importlib.import_module(self._built_in)
