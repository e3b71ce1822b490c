# SPDX-License-Identifier: Apache-2.0
"""All denoisers (MODULES) and deep networks (STACKS) that tests have exported or refused, by name."""

import augmented_stacks
import hidden_modules
import hidden_stacks
import kept_or_changed
import near_zero
import odd_modules
import odd_stacks
import recorded_otherwise
import sized_stacks
import tricky_stacks


def joined(parts):
    """One table of several, in which no row hides another of its name."""
    rows = {}
    for part in parts:
        twice = rows.keys() & part.keys()
        assert not twice, f'rows of one name: {sorted(twice)}'
        rows |= part
    return rows


MODULES = joined(each.MODULES for each in (
    odd_modules, hidden_modules, near_zero, kept_or_changed, recorded_otherwise))
STACKS = joined(each.STACKS for each in (
    odd_stacks, tricky_stacks, sized_stacks, hidden_stacks, near_zero, kept_or_changed,
    recorded_otherwise, augmented_stacks))
