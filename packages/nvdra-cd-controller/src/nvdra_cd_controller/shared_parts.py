# SPDX-License-Identifier: Apache-2.0
"""Keeps the equal parts of similar objects once. Pure.

The DaemonSets and claim templates of all domains differ in a few names and UIDs, and so do the pods
of their daemons. As JSON values each takes many times the memory of its text.
"""

import operator
import sys
from collections.abc import Callable
from typing import Any

from nvdra_api.meta import JsonObject


class SharedParts:
    """A transform of the objects of one collection.

    What it returns has parts in common with other objects, so nobody may change it.
    """

    def __init__(self, trim: Callable[[JsonObject], JsonObject]) -> None:
        """Create the transform.

        Args:
            trim: Returns the part of an object to keep.
        """
        self._trim = trim
        self._last: JsonObject = {}

    def __call__(self, obj: JsonObject) -> JsonObject:
        """The part of the object to keep, with the parts of the last object where it can."""
        self._last = shared(self._trim(obj), self._last)
        return self._last


def shared(value: Any, model: Any) -> Any:
    """An equal value that has those parts of the model which are equal. Neither is changed."""
    if type(value) is not type(model):
        model = type(value)() if isinstance(value, dict | list) else None
    if isinstance(value, dict):
        made = {sys.intern(key): shared(each, model.get(key)) for key, each in value.items()}
        is_model = made.keys() == model.keys() and all(model[key] is made[key] for key in made)
        return model if is_model else made
    if isinstance(value, list):
        models = [*model, *value[len(model) :]]
        items = [shared(*pair) for pair in zip(value, models, strict=False)]
        is_model = len(items) == len(model) and all(map(operator.is_, items, model))
        return model if is_model else items
    return model if value == model else value
