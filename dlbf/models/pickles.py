r"""Estimators as sealed pickles: kept for provenance and retraining, never needed to answer a query.

A pickle is a program.  So one is opened only when asked for, only after its keyed tag has been checked, and then only
through a list of the classes and functions that fitted estimators consist of.

::

    offset  width  field
         0      8  magic  "DLBFPKL\x01"
         8      8  u64    size of the pickle in bytes
        16     32  tag    BLAKE2b-256 of bytes 0 .. 15 and the pickle, keyed
        48      p  the pickle (protocol 4)
"""

import hashlib
import hmac
import io
import pickle
import pickletools
import struct
from typing import Any, NoReturn

from dlbf.errors import ChecksumError, FormatError

__all__ = ["MAX_PICKLE_BYTES", "open_pickle", "seal"]

MAGIC = b"DLBFPKL\x01"
MAX_PICKLE_BYTES = 1 << 28
# Python hashes a tuple of tuples by recursion without a limit: as the key of a dict, one that is deep enough ends the
# process.  Estimators go some ten deep.
MAX_TUPLE_DEPTH = 500
_HEAD = struct.Struct("<8sQ32s")

# Exact names.  None of them runs a command, imports, opens or evaluates when a pickle calls it.  They do not make every
# pickle harmless: who knows the secret can still describe arrays that end the process.  The tag keeps others out.
_ALLOWED: dict[str, frozenset[str]] = {
    "sklearn.linear_model._stochastic_gradient": frozenset({"SGDClassifier"}),
    "sklearn.linear_model._logistic": frozenset({"LogisticRegression", "LogisticRegressionCV"}),
    "sklearn.svm._classes": frozenset({"LinearSVC"}),
    "sklearn.naive_bayes": frozenset({"GaussianNB"}),
    "sklearn.tree._classes": frozenset({"DecisionTreeClassifier", "DecisionTreeRegressor", "ExtraTreeClassifier"}),
    "sklearn.tree._tree": frozenset({"Tree"}),
    "sklearn.ensemble._forest": frozenset({"RandomForestClassifier", "ExtraTreesClassifier"}),
    "sklearn.ensemble._weight_boosting": frozenset({"AdaBoostClassifier"}),
    "sklearn.ensemble._gb": frozenset({"GradientBoostingClassifier"}),
    "sklearn.dummy": frozenset({"DummyClassifier"}),
    "sklearn.ensemble._hist_gradient_boosting.gradient_boosting": frozenset({"HistGradientBoostingClassifier"}),
    "sklearn.ensemble._hist_gradient_boosting.predictor": frozenset({"TreePredictor"}),
    "sklearn.ensemble._hist_gradient_boosting.binning": frozenset({"_BinMapper"}),
    "sklearn.preprocessing._label": frozenset({"LabelEncoder"}),
    "sklearn._loss.loss": frozenset({"HalfBinomialLoss", "ExponentialLoss"}),
    "sklearn._loss._loss": frozenset(
        {
            "CyHalfBinomialLoss",
            "CyExponentialLoss",
            "CyHalfSquaredError",
            "CyHuberLoss",
            "__pyx_unpickle_CyHalfBinomialLoss",
            "__pyx_unpickle_CyExponentialLoss",
            "__pyx_unpickle_CyHalfSquaredError",
            "__pyx_unpickle_CyHuberLoss",
        }
    ),
    "sklearn._loss.link": frozenset({"LogitLink", "HalfLogitLink", "Interval"}),
    "sklearn.linear_model._sgd_fast": frozenset(
        {
            "Log",
            "Hinge",
            "ModifiedHuber",
            "SquaredHinge",
            "SquaredLoss",
            "Huber",
            "EpsilonInsensitive",
            "SquaredEpsilonInsensitive",
        }
    ),
    "numpy": frozenset({"ndarray", "dtype", "float64", "float32", "int64", "int32", "uint8", "bool_"}),
    "numpy._core.multiarray": frozenset({"_reconstruct", "scalar"}),
    "numpy.core.multiarray": frozenset({"_reconstruct", "scalar"}),
    "numpy._core.numeric": frozenset({"_frombuffer"}),
    "numpy.core.numeric": frozenset({"_frombuffer"}),
    "numpy.random._pickle": frozenset({"__randomstate_ctor", "__bit_generator_ctor", "__generator_ctor"}),
    "numpy.random._mt19937": frozenset({"MT19937"}),
    "numpy.random._pcg64": frozenset({"PCG64"}),
    "numpy.random.bit_generator": frozenset({"SeedSequence", "__pyx_unpickle_SeedSequence"}),
    "collections": frozenset({"OrderedDict"}),
    "builtins": frozenset({"slice", "complex"}),
}

# What protocols 2 to 5 need for data.  Not here: persistent ids, extension codes, out-of-band buffers, and the old
# opcodes that import and call in one step.
_FORBIDDEN_OPCODES = frozenset(
    {"PERSID", "BINPERSID", "EXT1", "EXT2", "EXT4", "NEXT_BUFFER", "READONLY_BUFFER", "INST", "OBJ", "GLOBAL"}
)


class _ListedUnpickler(pickle.Unpickler):
    def find_class(self, module_name: str, global_name: str) -> Any:
        # No dots: "a.b" would walk attributes from a listed module to something unlisted.
        if global_name not in _ALLOWED.get(module_name, frozenset()):
            raise FormatError(
                f"the pickle asks for {module_name}.{global_name}, which no estimator that dlbf compiles is made of; "
                "nothing was run; do not trust where these bytes came from"
            )
        return super().find_class(module_name, global_name)

    def persistent_load(self, pid: object) -> NoReturn:
        raise FormatError("the pickle refers to something outside itself; nothing was run")


def _tag(head: bytes, data: bytes | memoryview, secret: bytes) -> bytes:
    if not isinstance(secret, bytes | bytearray) or len(secret) < 16:
        raise ValueError("a secret must be at least 16 random bytes, for example secrets.token_bytes(32)")
    # The key is derived, so one secret can also key other things.
    key = hashlib.blake2b(bytes(secret), digest_size=32, person=b"dlbf pickle key").digest()
    state = hashlib.blake2b(head, digest_size=32, key=key)
    state.update(data)
    return state.digest()


def seal(estimator: object, secret: bytes) -> bytes:
    """Pickle a fitted estimator and put a keyed tag before it.

    Parameters
    ----------
    estimator : object
        One that `open_pickle` will accept back.
    secret : bytes
        At least 16 random bytes.  Whoever knows them can make a pickle that passes.

    Examples
    --------
    >>> sealed = seal([1.5, "plain data"], bytes(16))
    >>> open_pickle(sealed, bytes(16))
    [1.5, 'plain data']
    """
    data = pickle.dumps(estimator, protocol=4)
    head = MAGIC + len(data).to_bytes(8, "little")
    return head + _tag(head, data, secret) + data


_GLOBAL = -1  # in place of a depth: a class or function itself


class _Depths:
    """How deep tuples are nested in each object of an unpickler's stack; at least that, never less."""

    def __init__(self) -> None:
        self.stack: list[int] = []
        self.marks: list[int] = []
        self.memo: dict[int, int] = {}

    def _pop(self, n: int) -> int:
        if n > len(self.stack) - (self.marks[-1] if self.marks else 0):
            raise FormatError("the pickle takes more than it has put down; nothing was run")
        taken = self.stack[len(self.stack) - n :]
        del self.stack[len(self.stack) - n :]
        return max(taken, default=0)

    def _pop_mark(self) -> int:
        if not self.marks:
            raise FormatError("the pickle has no mark where it needs one; nothing was run")
        deepest = self._pop(len(self.stack) - self.marks[-1])
        self.marks.pop()
        return deepest

    def step(self, opcode: pickletools.OpcodeInfo, argument: Any) -> None:
        name = opcode.name
        if name == "MARK":
            self.marks.append(len(self.stack))
        elif name == "STACK_GLOBAL":
            self._pop(2)
            self.stack.append(_GLOBAL)
        elif name == "BUILD" and self.stack[-2:-1] == [_GLOBAL]:
            raise FormatError("the pickle changes a class or function instead of an object; nothing was run")
        elif name in ("GET", "BINGET", "LONG_BINGET"):
            self.stack.append(self.memo.get(int(argument), 0))
        elif name in ("PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE"):
            deepest = self._pop(1)
            self.stack.append(deepest)
            self.memo[len(self.memo) if argument is None else int(argument)] = deepest
        elif name == "DUP":
            self.stack += [self._pop(1)] * 2
        elif name == "POP" and len(self.stack) == (self.marks[-1] if self.marks else 0):
            self._pop_mark()
        elif pickletools.markobject in opcode.stack_before:
            below = opcode.stack_before.index(pickletools.markobject)
            self._push(opcode, max(self._pop_mark(), self._pop(below)))
        else:
            self._push(opcode, self._pop(len(opcode.stack_before)))

    def _push(self, opcode: pickletools.OpcodeInfo, deepest: int) -> None:
        depth = deepest + opcode.name.startswith("TUPLE")
        if depth > MAX_TUPLE_DEPTH:
            raise FormatError(f"the pickle nests more than {MAX_TUPLE_DEPTH} tuples; nothing was run")
        self.stack += [depth] * len(opcode.stack_after)


def _check_opcodes(data: bytes | memoryview) -> None:
    """Refuse what could exhaust memory or the stack or reach outside, before any of it is executed."""
    size = len(data)
    depths = _Depths()
    try:
        for count, (opcode, argument, _) in enumerate(pickletools.genops(bytes(data))):
            if opcode.name in _FORBIDDEN_OPCODES:
                raise FormatError(
                    f"the pickle uses the opcode {opcode.name}, which estimators do not need; nothing was run"
                )
            # An index far beyond what was stored makes the unpickler's memo that large.
            if opcode.name in ("PUT", "BINPUT", "LONG_BINPUT") and argument is not None and int(argument) > count:
                raise FormatError(f"the pickle stores at place {argument} after {count} steps; nothing was run")
            if isinstance(argument, int) and argument.bit_length() > 4096:
                raise FormatError(f"the pickle holds a number of {argument.bit_length()} bits; nothing was run")
            depths.step(opcode, argument)
    except FormatError:
        raise
    except Exception as error:
        raise FormatError(f"the {size} bytes are not a whole pickle ({error}); nothing was run") from None


def open_pickle(data: bytes | bytearray | memoryview, secret: bytes, max_bytes: int = MAX_PICKLE_BYTES) -> Any:
    """Give back the estimator of a sealed pickle, or refuse with nothing executed.

    Parameters
    ----------
    data : buffer
        What `seal` or ``Model.seal`` returned.
    secret : bytes
        The one it was sealed with.
    max_bytes : int
        Larger pickles are refused unread.

    Raises
    ------
    FormatError
        If the bytes are not one whole sealed pickle, are too large, or ask for anything off the list.
    ChecksumError
        If the tag is wrong: another secret, or the bytes have changed.

    Examples
    --------
    >>> sealed = seal({"weights": [1, 2]}, bytes(16))
    >>> open_pickle(sealed, bytes(16))
    {'weights': [1, 2]}
    >>> open_pickle(sealed, bytes(15) + b"x")
    Traceback (most recent call last):
        ...
    dlbf.errors.ChecksumError: ...
    """
    raw = bytes(data)
    if len(raw) < _HEAD.size or raw[:8] != MAGIC:
        raise FormatError(f"expected a sealed pickle beginning with {MAGIC!r}, found {raw[:8]!r}")
    _, size, tag = _HEAD.unpack_from(raw)
    if size > max_bytes:
        raise FormatError(
            f"the pickle has {size} bytes, at most {max_bytes} are accepted; raise max_bytes= if you trust it"
        )
    if size != len(raw) - _HEAD.size:
        raise FormatError(f"expected {size} bytes of pickle, found {len(raw) - _HEAD.size}; it was cut or appended to")
    if not hmac.compare_digest(tag, _tag(raw[:16], raw[_HEAD.size :], secret)):
        raise ChecksumError("the pickle's tag does not fit: another secret, or changed bytes; nothing was run")
    body = raw[_HEAD.size :]
    _check_opcodes(body)
    try:
        return _ListedUnpickler(io.BytesIO(body)).load()
    except FormatError:
        raise
    except Exception as error:
        raise FormatError(f"the pickle cannot be read back ({type(error).__name__}: {error})") from error
