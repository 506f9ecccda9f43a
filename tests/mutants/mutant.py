# SPDX-License-Identifier: Apache-2.0
"""What a mutant is."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Mutant:
    """A fault, by the text that it replaces.

    Attributes:
        name: Its name on the command line and in the table.
        file: The file, from the root of the repository.
        old: Text that occurs exactly once in the file.
        new: What takes its place.
        harm: What users would notice.
        unit: Unit tests, files or `path::function`, of which one must fail with it.
        component: Component tests, each of which must fail with it: where no unit test can, or
            where a test was once content with the fault.
        explained: Why nothing can notice it; such a mutant is listed and may live.
    """

    name: str
    file: str
    old: str
    new: str
    harm: str
    unit: tuple[str, ...] = ()
    component: tuple[str, ...] = ()
    explained: str = ""

    @property
    def tests(self) -> tuple[str, ...]:
        """All tests that are to notice it."""
        return (*self.unit, *self.component)

    def applied(self, text: str) -> str:
        """The file's text with the fault.

        Raises:
            ValueError: The old text does not occur exactly once.
        """
        count = text.count(self.old)
        if count != 1:
            raise ValueError(f"{self.name}: its old text occurs {count} times in {self.file}")
        return text.replace(self.old, self.new)
