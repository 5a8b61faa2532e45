"""Operations on tensors, noted as they run: a program of tensors as a graph."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from operator import getitem
from typing import Any, cast

import torch
from torch import Tensor, fx, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack
from torch.utils.weak import TensorWeakRef

__all__ = ["OperationTracer", "is_tracing", "without_cast_cache"]

_aten = torch.ops.aten
#: what ``torch.tensor`` calls on a tensor that nobody else has, and what a graph does in its place
_LIFT_FRESH, _LIFT_FRESH_COPY = _aten.lift_fresh.default, _aten.lift_fresh_copy.default
_ERROR_OF_UNSEEN_OPERATION = "a tensor was made of another one without an operation"
_TENSOR_TYPES = (Tensor, nn.Parameter)  # those without operations of their own
#: of arguments that are written into a graph as they are
_LITERAL_TYPES = (
    type(None),
    bool,
    int,
    float,
    complex,
    str,
    torch.dtype,
    torch.device,
    torch.layout,
    torch.memory_format,
)


class OperationTracer(TorchDispatchMode):
    """
    Runs a program and notes each operation of the dispatcher, those of autograd among them.

    Tensors that the program finds elsewhere are held by the graph as they are. It notes no shapes
    and no lines of the program, which takes a fifth of the time of PyTorch's ``make_fx``, and gives
    the same graph.

    When to use: for functions that are recorded to be replayed. When not: for graphs that a
    compiler is given, which asks for shapes.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._module = fx.GraphModule(nn.Module(), fx.Graph())
        self._graph = self._module.graph
        #: by a tensor's id: the tensor, weakly, its node, and whether its number is the same always
        self._known: dict[int, tuple[TensorWeakRef, fx.Node, bool]] = {}
        self._held: dict[int, str] = {}
        #: by a tensor's id, where its numbers were when they were last seen
        self._where: dict[int, int | None] = {}
        #: memory of the arguments and that which operations have filled, with its end and who
        #: tells whether it is still in use; and memory of tensors that were there before
        self._made: dict[int | None, tuple[int, StorageWeakRef]] = {}
        self._given: set[int | None] = {None}
        self._written: set[int | None] = set()

    def argument(self, tensor: Tensor) -> None:
        """
        Notes an argument of the function.

        :param torch.Tensor tensor: of any shape; the same at each place where the program uses it.
            In memory that nothing else has: another tensor there is taken for one made of it.
        """
        node = self._graph.placeholder(f"arg{len(self._graph.nodes)}_1")
        self._know(tensor, node, constant=False)

    def finished(self, result: Any) -> fx.GraphModule:
        """
        The graph.

        :param result: what the function returned: tensors, and lists, tuples and dicts of them.
        :returns: the graph, a function of the arguments in their order; to be compiled
            (``recompile()``) before it is run.
        """
        self._graph.output(self._noted(result))
        return self._module

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # else torch loads its compiler to keep it away, which takes a second

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Notes an operation and runs it."""
        kwargs = kwargs or {}
        if any(kind not in _TENSOR_TYPES for kind in types):
            return NotImplemented  # of another kind of tensors, which has operations of its own
        if torch.is_inference_mode_enabled():  # where autograd does not take it apart before
            with self:
                parts = func.decompose(*args, **kwargs)
            if parts is not NotImplemented:
                return parts
        tensors = list(_tensors((args, kwargs)))
        given = [self._find(one) for one in tensors]
        fixed = all(
            one is None or (one[2] and _memory(tensor) not in self._written)
            for one, tensor in zip(given, tensors, strict=True)
        )
        if torch.Tag.data_dependent_output in func.tags:
            if not fixed:
                raise RuntimeError(f"{func} gives a data-dependent number to the program")
            return func(*args, **kwargs)
        called = _LIFT_FRESH_COPY if func is _LIFT_FRESH else func
        if func is _LIFT_FRESH:  # what torch.tensor has just filled
            self._made.pop(_memory(args[0]), None)
        node = self._graph.create_node(
            "call_function",
            called,
            self._noted(args),
            self._noted(kwargs),
            func.overloadpacket.__name__ if called is func else "lift_fresh_copy",
        )
        if func._schema.is_mutable:
            self._written |= {_memory(one) for one in _written_by(func, args, kwargs)} - {None}
        result = called(*args, **kwargs)
        if func._schema.is_mutable:
            self._where |= {id(one): _memory(one) for one in _written_by(func, args, kwargs)}
        known = fixed and any(one is not None for one in given)
        random = torch.Tag.nondeterministic_seeded in func.tags
        self._know(result, node, constant=called is _LIFT_FRESH_COPY or (known and not random))
        return result

    def _find(self, tensor: Tensor) -> tuple[TensorWeakRef, fx.Node, bool] | None:
        """What is known of a tensor; None of one that the program found elsewhere."""
        found = self._known.get(id(tensor))
        return found if found is not None and found[0]() is tensor else None

    def _know(self, value: Any, node: fx.Node, constant: bool) -> None:
        """Notes which node a result is, or which node each of several is part of."""
        if isinstance(value, Tensor):
            fixed = constant and value.numel() <= 1
            self._known[id(value)] = (TensorWeakRef(value), node, fixed)
            self._where[id(value)] = memory = _memory(value)
            if memory not in self._given:
                storage = value.untyped_storage()
                end = storage.data_ptr() + storage.nbytes()
                self._made[memory] = end, StorageWeakRef(storage)
            node.meta["dtype"] = value.dtype
        elif isinstance(value, (list, tuple)):
            for place, one in enumerate(value):
                part = self._graph.call_function(getitem, (node, place))
                self._know(one, part, constant)

    def _noted(self, value: Any) -> Any:
        """Arguments with nodes in the place of tensors."""
        if isinstance(value, Tensor):
            found = self._find(value)
            if found is None:
                return self._hold(value)
            if self._where[id(value)] != _memory(value):  # x.data = w
                raise RuntimeError(_ERROR_OF_UNSEEN_OPERATION)
            return found[1]
        if isinstance(value, (list, tuple)):
            return type(value)(map(self._noted, value))
        if isinstance(value, dict):
            return {key: self._noted(one) for key, one in value.items()}
        if not isinstance(value, _LITERAL_TYPES):
            raise TypeError(f"a {type(value).__name__} among the arguments of an operation")
        return value

    def _hold(self, tensor: Tensor) -> fx.Node:
        """A node that reads a tensor which the graph holds."""
        name = self._held.get(id(tensor))
        if name is None:
            memory = _memory(tensor)
            if self._is_made(tensor):  # nn.Parameter(w)
                raise RuntimeError(_ERROR_OF_UNSEEN_OPERATION)
            self._given.add(memory)
            kind = "param" if isinstance(tensor, nn.Parameter) else "tensor"
            number = sum(one.startswith(f"_{kind}") for one in self._held.values())
            name = self._held[id(tensor)] = f"_{kind}_constant{number}"
            if kind == "param":
                setattr(self._module, name, tensor)
            else:
                self._module.register_buffer(name, tensor, persistent=False)
        return self._graph.get_attr(name)

    def _is_made(self, tensor: Tensor) -> bool:
        """Whether a tensor that no operation made has memory of one that is in the graph."""
        memory = _memory(tensor)
        if memory is not None:
            return memory in self._made and not self._made[memory][1].expired()
        try:
            start = tensor.untyped_storage().data_ptr()  # maybe within another's: from_dlpack
        except (NotImplementedError, RuntimeError):
            return False
        return start != 0 and any(
            begin is not None and begin <= start < end and not storage.expired()
            for begin, (end, storage) in self._made.items()
        )


def _written_by(func: Any, args: Any, kwargs: Any) -> Iterator[Tensor]:
    """The tensors that an operation writes into."""
    for place, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = args[place] if place < len(args) else kwargs.get(argument.name)
            yield from _tensors(value)


def _memory(tensor: Tensor) -> int | None:
    """Where the numbers of a tensor are; None if that is not torch's own memory."""
    try:
        storage = tensor.untyped_storage()
        return (storage.data_ptr() or None) if storage.resizable() else None
    except (NotImplementedError, RuntimeError):  # sparse ones, and those within torch.func
        return None


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for one in value:
            yield from _tensors(one)
    elif isinstance(value, dict):
        for one in value.values():
            yield from _tensors(one)


def is_tracing() -> bool:
    """
    Tells whether operations are being noted.

    :returns: whether an :class:`OperationTracer` looks on.
    """
    modes = cast(Any, _get_current_dispatch_mode_stack)()
    return any(isinstance(mode, OperationTracer) for mode in modes)


@contextmanager
def without_cast_cache() -> Iterator[None]:
    """
    Casts of ``torch.autocast`` are made again, where one of before would be held.

    :returns: a context.
    """
    before = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(False)
    try:
        yield
    finally:
        torch.set_autocast_cache_enabled(before)
