"""Message classes: one slot per field of any version, and the codec of the schema data behind `encode` and `decode`.

`message_plan` knows the schemas, `message_decode` and `message_encode` run them; none of them knows a message by name.
"""

cimport cython
from cpython.object cimport PyObject

from kbroker._core.base.raw_objects cimport Py_TYPE, let_others_run, slot_at
from kbroker._core.wire.message_decode cimport decode_message
from kbroker._core.wire.message_encode cimport LazyArray, encode_message
from kbroker._core.wire.message_plan cimport define_class, define_fields, layout_of, layout_t, parse_range, range_t


@cython.auto_pickle(False)
cdef class Struct:
    """A part of a message: one slot per field of any version. Made by keyword, with the protocol's defaults."""

    def __eq__(self, other):
        cdef layout_t *layout
        cdef PyObject *left
        cdef PyObject *right
        if type(self) is not type(other):
            return NotImplemented
        layout = layout_of(<PyObject *>Py_TYPE(<PyObject *>self))
        for i in range(layout.field_count):
            left = slot_at(<PyObject *>self, layout.fields[i].offset)[0]
            right = slot_at(<PyObject *>other, layout.fields[i].offset)[0]
            if left == right:
                continue
            if left == NULL or right == NULL or <object>left != <object>right:
                return False
        return True

    __hash__ = None

    def __dealloc__(self):
        let_others_run()          # a list of a million parts takes its time to go

    def __repr__(self):
        cdef layout_t *layout = layout_of(<PyObject *>Py_TYPE(<PyObject *>self))
        cdef list parts = []
        cdef PyObject *value
        for i in range(layout.field_count):
            value = slot_at(<PyObject *>self, layout.fields[i].offset)[0]
            parts.append(f"{<str>layout.fields[i].name}={'?' if value == NULL else repr(<object>value)}")
        return f"{type(self).__name__}({', '.join(parts)})"


@cython.auto_pickle(False)
cdef class Message(Struct):
    """A request, a response, a header or a record of the coordinators' topics."""

    def encode(self, int version):
        """The body in a version. `ProtocolError` (UNSUPPORTED_VERSION) when the version cannot carry a value."""
        return encode_message(self, version)

    @classmethod
    def decode(cls, body, int version):
        """The message that `body` is; it keeps no reference to it. `MalformedBytes` when anything is wrong with it."""
        cdef size_t size = 0
        return decode_message(cls, body, version, True, &size)

    @classmethod
    def decode_prefix(cls, body, int version):
        """The message at the start of `body`, and how many bytes it takes."""
        cdef size_t size = 0
        message = decode_message(cls, body, version, False, &size)
        return message, size


def lazily(Py_ssize_t count, items not None):
    """For a list of `count` structs in a message that is encoded once: each is made when it is its turn, and gone when it is
    encoded. An error of `items` ends the encoding."""
    return LazyArray(count, items)


def make_message(str name, list schema, str module):
    """The class of a message, from its line of the schema data; nested structs are its attributes."""
    api_key, _, versions, flexible, fields, structs = schema
    cdef range_t valid = parse_range(versions)
    cdef range_t compact = parse_range(flexible)
    cdef dict children = {}
    attributes = {
        "API_KEY": api_key, "MIN_VERSION": valid.low, "MAX_VERSION": valid.high,
        "FLEXIBLE_FROM": compact.low if compact.high >= 0 else None,
    }
    for struct, struct_fields in structs.items():
        children[struct] = make_class(f"{name}.{struct}", struct, struct_fields, Struct, module, {}, valid, compact)
    made = make_class(name, name, fields, Message, module, {**attributes, **children}, valid, compact)
    define_fields(made, fields, children)
    for struct, struct_fields in structs.items():
        define_fields(children[struct], struct_fields, children)
    return made


cdef object make_class(str qualname, str name, list fields, type base, str module, dict attributes,
                       range_t versions, range_t flexible):
    slots = tuple([field[0] for field in fields])
    cls = type(name, (base,), {"__slots__": slots, "__module__": module, "__qualname__": qualname, **attributes})
    define_class(cls, qualname, versions, flexible, len(fields))
    return cls
