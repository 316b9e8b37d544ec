"""The types that generated signatures name, and `seen`, which says exactly what a function was given.

Both sides import this file beside the generated ones, so it needs nothing but pydantic.
"""

from __future__ import annotations

import asyncio
import collections
import dataclasses
import datetime
import decimal
import enum
import functools
import ipaddress
import pathlib
import typing
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple, NewType, Optional, Union

import typing_extensions
from pydantic import (
    AfterValidator,
    AliasChoices,
    AnyUrl,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    Json,
    PlainSerializer,
    PositiveInt,
    SecretStr,
    StrictBool,
    StrictInt,
    StrictStr,
    computed_field,
    conint,
    constr,
)


class Color(enum.Enum):
    red = "red"
    blue = "blue"


class Level(enum.IntEnum):
    low = 1
    high = 2


class Right(enum.IntFlag):
    read = 1
    write = 2


class Point(BaseModel):
    """A place."""

    x: int
    y: int = 0


class Named(BaseModel):
    model_config = ConfigDict(extra="forbid")
    name: str = Field(description="Its name.", min_length=1)
    where: Point | None = None


class Aliased(BaseModel):
    from_: int = Field(alias="from")
    to: int = Field(2, validation_alias="until", serialization_alias="till")


class ByAlias(BaseModel):
    model_config = ConfigDict(serialize_by_alias=True)
    from_: int = Field(alias="from")


class Open(BaseModel):
    model_config = ConfigDict(extra="allow")
    a: int = 1


class Tree(BaseModel):
    value: int
    children: list[Tree] = []


class Measured(BaseModel):
    width: float = 1.5

    @computed_field
    @property
    def area(self) -> float:
        return self.width**2


class Timed(BaseModel):
    at: datetime.datetime
    took: datetime.timedelta = datetime.timedelta(hours=2)


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: int = 9


class Dog(BaseModel):
    kind: Literal["dog"]
    tricks: list[str] = []


class User(BaseModel):
    name: str


class UserInDatabase(User):
    password: str = "secret"


@dataclasses.dataclass
class Pair:
    left: int
    right: str = "r"


@dataclasses.dataclass
class Secretive:
    shown: int = 1
    hidden: bytes = b"\xff\xfe"


class Options(typing_extensions.TypedDict, total=False):
    depth: typing_extensions.Required[int]
    label: str


class Spot(NamedTuple):
    row: int
    column: int = 0


class Opaque:
    """No type pydantic knows."""

    def __init__(self) -> None:
        self.a = 1


class Speaks:
    """An object with the attributes of a Point."""

    x = 7
    y = 8
    z = 9


UserId = NewType("UserId", int)
Names = typing_extensions.TypeAliasType("Names", list[str])
Either = Annotated[Cat | Dog, Field(discriminator="kind")]


def even(value: int) -> int:
    if value % 2:
        raise ValueError("not even")
    return value


def stripped(value: Any) -> Any:
    return value.strip() if isinstance(value, str) else value


def never() -> Any:
    raise AssertionError("called")


def seen(**given: Any) -> str:
    """What the function was given: every value with its type."""
    return "; ".join(f"{name}={shown(value)}" for name, value in given.items())


def shown(value: Any) -> str:
    kind = type(value).__name__
    if value is None or isinstance(value, (bool, int, float, str, bytes)) and type(value).__module__ == "builtins":
        return repr(value)
    if isinstance(value, enum.Enum):
        return f"{kind}.{value.name}"
    if isinstance(value, BaseModel):
        extra = value.model_extra or {}
        fields = {name: getattr(value, name) for name in type(value).model_fields}
        return f"{kind}({seen(**fields, **extra)}|{','.join(sorted(value.model_fields_set))})"
    if dataclasses.is_dataclass(value):
        return f"{kind}({seen(**{field.name: getattr(value, field.name) for field in dataclasses.fields(value)})})"
    if isinstance(value, Mapping):
        return f"{kind}{{{', '.join(f'{shown(key)}: {shown(item)}' for key, item in value.items())}}}"
    if isinstance(value, (set, frozenset)):
        return f"{kind}<{', '.join(sorted(map(shown, value)))}>"
    if isinstance(value, (Sequence, Iterator, collections.deque)):
        return f"{kind}[{', '.join(map(shown, value))}]"
    return f"{type(value).__module__}.{kind}:{value!r}"
