# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Which GPUs of a cluster the CEL selectors of claims and device classes select.

A selector sees what the ResourceSlice of a node says about its devices. Expressions are input of users: one evaluation
and all of a request have budgets of steps. Which attributes an evaluation reads is noted: GPUs that agree in these have
the same answer, so they are evaluated once, also if other nodes of the cluster change.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from cotenant.core.model import Gpu, Machine
from cotenant.core.units import MIB_BYTES
from cotenant.errors import InputError
from cotenant.kube.codec.cel.functions import version
from cotenant.kube.codec.cel.parser import Expression, parse
from cotenant.kube.codec.cel.values import Budget, BudgetError, CelError, Quantity
from cotenant.node.devices.vendors import Vendor
from cotenant.wire.text import printable

STEPS_EACH = 5_000
"""Of one evaluation; usual selectors take less than 50."""
STEPS, STEPS_PER_GPU = 250_000, 30
"""Of all selectors of a claim for all GPUs: some tenths of a second. To parse a character takes as long as a step."""
LOOKS_PER_STEP = 2
"""Answers about GPUs that are known take as long as one step."""
MOST_SELECTORS = 64
MOST_KNOWN = 256
"""Sets of selectors whose answers are kept."""
MOST_READS = 8
"""Sets of attributes that evaluations of one expression have read, by which answers are found again."""

Attributes = Callable[[Machine, Vendor], list[dict[str, Any]]]
"""The attributes of each GPU of a machine, as its ResourceSlice has them."""


@dataclass(frozen=True, slots=True)
class Selected:
    """The GPUs that satisfy all selectors of a request."""

    by_node: Mapping[str, frozenset[str]]
    """UUIDs by the name of the node."""
    every: bool
    """Whether these are all GPUs of the cluster."""

    @property
    def uuids(self) -> frozenset[str]:
        return frozenset().union(*self.by_node.values())


class _TooManyStepsError(InputError):
    """The budget is used up, which says nothing about the same selectors in another claim."""


Reads = frozenset[str] | None
"""The attributes that an evaluation has read, by their qualified names, also those that are not there; None: all."""


@dataclass(slots=True)
class _Noted:
    """What an evaluation reads."""

    names: set[str] = field(default_factory=set)
    everything: bool = False

    @property
    def reads(self) -> Reads:
        return None if self.everything else frozenset(self.names)


class _Attributes(Mapping[str, Any]):
    """The attributes of a device in one domain. Notes which of them are read."""

    def __init__(self, domain: str, values: Mapping[str, Any], noted: _Noted) -> None:
        self._domain, self._values, self._noted = domain, values, noted

    def __contains__(self, name: object) -> bool:
        self._noted.names.add(f"{self._domain}/{name}")
        return name in self._values

    def __getitem__(self, name: str) -> Any:
        self._noted.names.add(f"{self._domain}/{name}")
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        self._noted.everything = True
        return iter(self._values)

    def __len__(self) -> int:
        self._noted.everything = True
        return len(self._values)


@dataclass(frozen=True, slots=True)
class _Device:
    node: str
    gpu: Gpu
    attributes: Mapping[str, Any]
    """By their qualified names."""
    keys: dict[Reads, object] = field(default_factory=dict, compare=False)
    """What evaluations that read these attributes find."""

    def found_by(self, reads: Reads) -> object:
        """What an evaluation that reads these attributes finds: devices that agree in it have the same answer."""
        found = self.keys.get(reads)
        if found is None:
            names = self.attributes if reads is None else reads & self.attributes.keys()
            read = sorted((name, type(self.attributes[name]), self.attributes[name]) for name in names)
            found = reads, *read, self.gpu.memory_capacity, self.gpu.compute_capacity
            self.keys[reads] = found
            if len(self.keys) > MOST_KNOWN:
                del self.keys[next(iter(self.keys))]
        return found

    def as_variable(self, driver: str, noted: _Noted) -> dict[str, Any]:
        domains: dict[str, dict[str, Any]] = {}
        for name, value in self.attributes.items():
            domain, _, short = name.rpartition("/")
            domains.setdefault(domain, {})[short] = value
        attributes = {domain: _Attributes(domain, values, noted) for domain, values in domains.items()}
        capacity = {
            "memory": Quantity(Fraction(int(self.gpu.memory_capacity) * MIB_BYTES)),
            "compute": Quantity(Fraction(int(self.gpu.compute_capacity) // 10)),
        }
        return {
            "driver": driver,
            "attributes": attributes,
            "capacity": {driver: capacity},
            "allowMultipleAllocations": True,
        }


@dataclass(slots=True)
class _Answers:
    """What a selector says about devices; a text says why it has no value."""

    reads: list[Reads] = field(default_factory=list)
    known: dict[object, bool | str] = field(default_factory=dict)

    def about(self, device: _Device) -> bool | str | None:
        """None if it is not known. An evaluation that reads the same values as an earlier one ends as that one did."""
        for reads in self.reads:
            found = self.known.get(device.found_by(reads))
            if found is not None:
                return found
        return None

    def keep(self, device: _Device, reads: Reads, answer: bool | str) -> None:
        if reads not in self.reads:
            if len(self.reads) >= MOST_READS:
                return
            self.reads.append(reads)
        self.known[device.found_by(reads)] = answer


class Fleet:
    """The GPUs of a cluster as devices of one driver, as long as the inventories of its nodes do not change."""

    def __init__(
        self,
        machines: Iterable[tuple[Machine, Vendor]],
        driver: str,
        attributes: Attributes,
        before: "Fleet | None" = None,
    ) -> None:
        """`before` is what the cluster was until now."""
        self._driver = driver
        self._machines, self._attributes = list(machines), attributes
        self._found: list[_Device] | None = None
        self._by_machine: dict[str, tuple[Machine, list[_Device]]] = {} if before is None else before._by_machine
        self._answers: dict[str, _Answers] = {} if before is None else before._answers
        self._known: dict[tuple[str, ...], Selected | str] = {}
        self._values: dict[str, dict[object, frozenset[str]]] = {}
        self._budget: Budget | None = None
        """of the claim that is being read"""
        self.steps: int = 0 if before is None else before.steps
        """What all selections have taken so far."""

    @property
    def _devices(self) -> list[_Device]:
        if self._found is None:  # most clusters have no claims with selectors
            by_machine = {}
            for machine, vendor in self._machines:
                known = self._by_machine.get(machine.name)
                is_same = known is not None and known[0] is machine
                by_machine[machine.name] = known if known and is_same else (machine, self._made(machine, vendor))
            self._by_machine = by_machine
            self._found = [device for _, devices in by_machine.values() for device in devices]
        return self._found

    def _made(self, machine: Machine, vendor: Vendor) -> list[_Device]:
        return [
            _Device(machine.name, gpu, {self._qualified(name): _value(one) for name, one in attributes.items()})
            for gpu, attributes in zip(machine.gpus, self._attributes(machine, vendor), strict=True)
        ]

    def _qualified(self, name: str) -> str:
        return name if "/" in name else f"{self._driver}/{name}"

    def begin_claim(self) -> None:
        """The selections that follow are of another claim, and have a budget of their own."""
        self._budget = None

    def _budget_of_claim(self) -> Budget:
        if self._budget is None:
            self._budget = Budget(max(STEPS, STEPS_PER_GPU * len(self._devices)))
        return self._budget

    def take(self, steps: int) -> None:
        """Something else about the claim takes so many steps; InputError if it has taken too many."""
        self.steps += steps
        try:
            self._budget_of_claim().take(steps)
        except BudgetError:
            raise _TooManyStepsError("its selectors and constraints take too many steps; leave fewer choices") from None

    def selected(self, selectors: tuple[str, ...]) -> Selected:
        """The GPUs that satisfy all selectors; InputError if there are none, or a selector cannot be evaluated."""
        found = self._known.get(selectors)
        if found is None:
            try:
                found = self._select(selectors)
            except _TooManyStepsError:  # the other selectors of the claim may have taken them
                raise
            except InputError as error:
                found = str(error)
            self._known[selectors] = found
            if len(self._known) > MOST_KNOWN:
                del self._known[next(iter(self._known))]
        if isinstance(found, str):
            raise InputError(found)
        return found

    def _select(self, selectors: tuple[str, ...]) -> Selected:
        if len(selectors) > MOST_SELECTORS:
            raise InputError(f"{len(selectors)} selectors, expected at most {MOST_SELECTORS}")
        kept = list(self._devices)
        for text in selectors:
            kept = self._kept_by(text, kept, self._budget_of_claim())
        by_node: dict[str, set[str]] = {}
        for device in kept:
            by_node.setdefault(device.node, set()).add(device.gpu.uuid)
        return Selected({node: frozenset(uuids) for node, uuids in by_node.items()}, len(kept) == len(self._devices))

    def _kept_by(self, text: str, devices: list[_Device], budget: Budget) -> list[_Device]:
        """The devices that one selector keeps. One for which it has no value, such as for an attribute that is not
        there, is not kept."""
        what, failed = f"selector {printable(text[:120])}", ""
        answers = self._answers.setdefault(text, _Answers())
        if len(self._answers) > MOST_KNOWN:
            del self._answers[next(iter(self._answers))]
        if len(answers.known) > 2 * len(self._devices):  # most are about GPUs that are gone
            answers.known.clear()
        kept = []
        to_look = len(text) + len(devices) // LOOKS_PER_STEP
        try:
            budget.take(to_look)
            self.steps += to_look
            expression = parse(text)
            for device in devices:
                answer = answers.about(device)
                if answer is None:
                    answer, reads = self._answer(expression, device, budget)
                    answers.keep(device, reads, answer)
                if answer is True:
                    kept.append(device)
                elif answer is not False:
                    failed = answer
        except BudgetError:
            raise _TooManyStepsError(f"{what}: the selectors of the claim take too many steps") from None
        except CelError as error:
            raise InputError(f"{what}: {error}") from None
        if not kept:
            why = f": {failed}" if failed else ""
            among = "" if len(devices) == len(self._devices) else " that the other selectors select"
            raise InputError(f"{what}: none of the {len(devices)} GPUs{among} satisfies it{why}")
        return kept

    def _answer(self, expression: Expression, device: _Device, budget: Budget) -> tuple[bool | str, Reads]:
        """Whether a device satisfies an expression, or why there is no value, such as of an attribute that is not
        there; and what the evaluation has read. BudgetError if it takes too many steps."""
        own, noted = Budget(STEPS_EACH), _Noted()
        try:
            answer = expression.evaluate({"device": device.as_variable(self._driver, noted)}, own)
        except BudgetError:
            raise
        except CelError as error:
            return str(error), noted.reads
        finally:
            taken = STEPS_EACH - max(own.left, 0)
            self.steps += taken
            budget.take(taken)
        return answer if isinstance(answer, bool) else "it is neither true nor false", noted.reads

    def values(self, attribute: str) -> dict[object, frozenset[str]]:
        """The GPUs by the value of an attribute, without those that do not have it."""
        if attribute not in self._values:
            self.steps += len(self._devices) // LOOKS_PER_STEP
            found: dict[object, set[str]] = {}
            for device in self._devices:
                if attribute in device.attributes:
                    found.setdefault(device.attributes[attribute], set()).add(device.gpu.uuid)
            if not found:
                return {}
            self._values[attribute] = {value: frozenset(uuids) for value, uuids in found.items()}
        return self._values[attribute]


def _value(written: Mapping[str, Any]) -> Any:
    """An attribute as an expression sees it."""
    ((kind, value),) = written.items()
    return version(value) if kind == "version" else value
