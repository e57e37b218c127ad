"""Message classes: a slot for each field of any version, and `encode` and `decode` by the schema data.

`message_plan` makes plans of the schemas, `message_decode` and `message_encode` work by the plans. None of them has
code for a particular message.
"""

cimport cython
from cpython.object cimport PyObject

from kbroker._core.base.raw_objects cimport Py_TYPE, let_others_run, slot_at
from kbroker._core.wire.message_decode cimport decode_message
from kbroker._core.wire.message_encode cimport LazyArray, encode_message
from kbroker._core.wire.message_plan cimport define_class, define_fields, layout_of, layout_t, parse_range, range_t


@cython.auto_pickle(False)
cdef class Struct:
    """A part of a message: a slot for each field of any version.

    Made with keywords; other fields have their defaults.
    """

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
        let_others_run()          # freeing a list of a million structs takes long

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
        """Return the message's body in a version.

        Raises ProtocolError (UNSUPPORTED_VERSION) if the version cannot carry a value, and TypeError if a value is not
        of its field's type.
        """
        return encode_message(self, version)

    @classmethod
    def decode(cls, body, int version):
        """Return the message of a whole `body`; the message keeps no reference to it.

        Raises MalformedBytes if it is not one.
        """
        cdef size_t size = 0
        return decode_message(cls, body, version, True, &size)

    @classmethod
    def decode_prefix(cls, body, int version):
        """Return the message at the start of `body`, and the number of its bytes.

        Raises MalformedBytes if there is none.
        """
        cdef size_t size = 0
        message = decode_message(cls, body, version, False, &size)
        return message, size


def lazily(Py_ssize_t count, items not None):
    """Return a value that stands for a list of `count` structs, in a message that is encoded once.

    Each struct is taken from `items` just before it is encoded, and freed afterwards. An exception that `items` raises
    ends the encoding.
    """
    return LazyArray(count, items)


def make_message(str name, list schema, str module):
    """Make the class of a message from its line of the schema data.

    The classes of nested structs are its attributes.
    """
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
