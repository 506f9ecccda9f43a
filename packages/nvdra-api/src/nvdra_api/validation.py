# SPDX-License-Identifier: Apache-2.0
"""The result of validating an object."""

from dataclasses import dataclass

from nvdra_api.errors import Reason


@dataclass(frozen=True, slots=True)
class Problem:
    """One invalid value in an object.

    Attributes:
        field: Dotted path below the object, such as `sharing.strategy`. Empty if the problem is
            about the object as a whole.
        text: What is wrong. Texts that users know from the reference driver or from Kubernetes are
            the same here.
        reason: `FeatureGateDisabled` if an administrator could allow the value with a feature gate,
            otherwise `InvalidConfig`.
        remedy: What to write instead. Empty if the text says it.
    """

    field: str
    text: str
    reason: Reason = Reason.INVALID_CONFIG
    remedy: str = ""

    @property
    def advice(self) -> str:
        """The text with the remedy."""
        return f"{self.text}; {self.remedy}" if self.remedy else self.text
