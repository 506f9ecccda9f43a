# SPDX-License-Identifier: Apache-2.0
"""The base of all descriptions."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Frozen(BaseModel):
    """An immutable model without unknown fields."""

    model_config = ConfigDict(frozen=True, extra="forbid")
